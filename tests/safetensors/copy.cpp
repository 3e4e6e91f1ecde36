// SPDX-License-Identifier: Apache-2.0

// copy IN OUT: reads a .safetensors file and writes what was read. For cross_check.py.

#include <polystate/interop/safetensors.hpp>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  namespace st = polystate::safetensors;
  if (argc != 3) return 2;
  try {
    const auto file = st::read(argv[1]);
    std::vector<st::tensor_source> sources;
    for (const auto& [name, t] : file.tensors()) sources.push_back({name, t.type, t.shape, file.bytes(name)});
    st::write(argv[2], sources, file.metadata());
  } catch (const st::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
