// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What programs that print a table have in common: bad arguments end in one line on stderr, and --json writes what was
/// printed to a file.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

namespace examples {

using json = nlohmann::ordered_json;

/// The option --json FILE.
class json_option {
 public:
  explicit json_option(CLI::App& app) { app.add_option("--json", path_, "also write what is printed to this file"); }

  /// Whether the file can be written, without touching what it holds: asked before minutes of work.
  void check() const {
    if (!path_.empty() && !std::ofstream(path_, std::ios::app)) throw unwritable();
  }

  void write(const json& result) const {
    if (path_.empty()) return;
    std::ofstream out(path_);
    out << result.dump(1) << '\n';
    if (!out.flush()) throw unwritable();
  }

 private:
  [[nodiscard]] std::runtime_error unwritable() const {
    return std::runtime_error("--json " + path_ + ": cannot be written");
  }

  std::string path_;
};

/// Parses the arguments and runs the program. Exit status 2 and one line on stderr for what cannot be used.
template <class Run>
int parse_and_run(CLI::App& app, int argc, char** argv, Run&& run) {
  constexpr int bad_input_status = 2;
  try {
    app.parse(argc, argv);
    run();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), e.what());
    return bad_input_status;
  }
  return 0;
}

/// A number as it is printed, "33.0".
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace examples
