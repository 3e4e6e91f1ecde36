// SPDX-License-Identifier: Apache-2.0
// What version.hpp calls the two namespaces, built with the options of BUILD.

#include <polystate/version.hpp>

#define TEXT_(...) #__VA_ARGS__
#define TEXT(...) TEXT_(__VA_ARGS__)

namespace BUILD {

const char* abi() { return TEXT(POLYSTATE_ABI); }
const char* build() { return TEXT(POLYSTATE_BUILD); }

}  // namespace BUILD
