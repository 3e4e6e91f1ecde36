// SPDX-License-Identifier: Apache-2.0

// Runs operators on case files and compares with the expected values in them: docs/replay.md.

#include "case_file.hpp"
#include "replay_case.hpp"

#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/interop/safetensors.hpp>

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace {

namespace st = polystate::safetensors;

enum exit_status { ok = 0, case_failed = 1, bad_input = 2 };

void write_tensors(const std::string& path, const replay::case_file& file,
                   const std::vector<replay::computed_tensor>& tensors, const replay::options& chosen) {
  std::vector<st::tensor_source> sources;
  for (const auto& [name, t, largest] : tensors) {
    sources.push_back(t.is_index ? st::source(name, t.shape, std::span(t.indices))
                                 : st::source(name, t.shape, std::span(t.values)));
  }
  st::write(path, sources,
            {{"op", file.op()},
             {"name", file.name()},
             {"exec", chosen.exec},
             {"dtype", replay::name_of(chosen.type.value_or(file.type()))}});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs operators on case files and compares with the expected values in them.", "replay");
  replay::options chosen;
  std::string type;
  std::string passes = "all";
  std::string out;
  bool no_skip = false;
  std::vector<std::string> paths;
  const auto is_exec = [](const std::string& name) {
    return polystate::visit_exec(name, [](const auto&) {}) ? "" : "no backend is called " + name;
  };
  const auto is_type = [](const std::string& name) {
    return replay::element_named(name) ? "" : "no data type is called " + name;
  };
  const auto is_factor = [](const std::string& text) {
    double factor = -1;
    const bool valid = CLI::detail::lexical_cast(text, factor) && std::isfinite(factor) && factor >= 0;
    return valid ? std::string() : "no finite number of at least 0: " + text;
  };
  app.add_option("--exec", chosen.exec, "backend: reference or cuda")->check(is_exec)->capture_default_str();
  app.add_option("--dtype", type, "f64, f32, bf16 or f16; default: the case's own")->check(is_type);
  app.add_option("--pass", passes, "forward, backward or all")
      ->check(CLI::IsMember({"forward", "backward", "all"}))
      ->capture_default_str();
  app.add_option("--tolerance-factor", chosen.tolerance_factor, "multiplies every limit")->check(is_factor);
  app.add_option("--out", out, "write what was computed to this .safetensors file; takes one case");
  app.add_option("--repeat", chosen.repeat, "also time N calls and print the median")->check(CLI::Range(1, 1'000'000));
  app.add_flag("--no-skip", no_skip, "a skipped case counts against the exit status");
  app.add_option("CASE", paths, "case files, .safetensors")->required();
  try {
    app.parse(argc, argv);
    if (!out.empty() && paths.size() != 1) throw CLI::ValidationError("--out", "takes exactly one case");
    std::error_code none;
    if (!out.empty() && std::filesystem::equivalent(out, paths.front(), none)) {
      throw CLI::ValidationError("--out", "would overwrite the case");
    }
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? ok : bad_input;
  }
  chosen.type = replay::element_named(type);
  chosen.which = passes == "all"       ? replay::passes::all
                 : passes == "forward" ? replay::passes::forward
                                       : replay::passes::backward;

  int counts[3] = {};
  bool unreadable = false;
  for (const auto& path : paths) {
    try {
      const auto file = replay::case_file::read(path);
      const replay::outcome result = replay_case(file, chosen);
      const char* const words[] = {"pass", "FAIL", "skip"};
      const auto word = static_cast<std::size_t>(result.result);
      ++counts[word];
      std::printf("%s %s %s: %s\n", words[word], st::error::printable(file.op()).c_str(),
                  st::error::printable(file.name()).c_str(), result.text.c_str());
      if (!out.empty() && result.result != replay::verdict::skipped) {
        write_tensors(out, file, result.tensors, chosen);
      }
    } catch (const polystate::argument_error& e) {
      unreadable = true;
      std::fprintf(stderr, "error %s: %s\n", path.c_str(), e.what());
    } catch (const std::exception& e) {
      unreadable = true;
      std::fprintf(stderr, "error %s\n", e.what());
    }
  }
  std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
  if (unreadable) return bad_input;
  return counts[1] > 0 || (no_skip && counts[2] > 0) ? case_failed : ok;
}
