// SPDX-License-Identifier: Apache-2.0
// That the units link is the test.
int main() {}
