// SPDX-License-Identifier: Apache-2.0

// replay as its users meet it: arguments in, lines and an exit status out.

#include "replay/edited_case.hpp"
#include "support/run_program.hpp"

#include <polystate/interop/safetensors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace {

namespace st = polystate::safetensors;
using polystate::testing::content_of;
using polystate::testing::edited_case;
using polystate::testing::finished_program;
using polystate::testing::run_program;
using polystate::testing::temporary_folder;

class replay_program : public ::testing::Test {
 protected:
  [[nodiscard]] std::string in_folder(const std::string& name) const { return folder_.file(name); }

  static finished_program run(const std::string& arguments) { return run_program(REPLAY_PROGRAM, arguments); }

  /// A copy of the case with the edit made.
  template <class Edit>
  [[nodiscard]] std::string edited(const std::string& name, Edit&& edit) const {
    edited_case c(golden(name));
    edit(c);
    const std::string path = in_folder("edited_" + name + ".safetensors");
    c.write(path);
    return path;
  }

  static std::string golden(const std::string& name) { return REPLAY_CASES "/" + name + ".safetensors"; }

 private:
  temporary_folder folder_;
};

const std::string basic = "causal_conv1d__basic";

TEST_F(replay_program, says_what_it_did_in_one_line_a_case) {
  const auto r = run(golden(basic) + " " + golden("causal_conv1d__varlen"));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 3) << r.out;
  EXPECT_NE(r.out.find("pass causal_conv1d " + basic + ": din."), std::string::npos) << r.out;
  EXPECT_TRUE(r.out.ends_with("2 passed, 0 failed, 0 skipped\n")) << r.out;
  EXPECT_EQ(r.err, "");
}

TEST_F(replay_program, repeat_adds_the_time) {
  const auto r = run("--repeat 3 " + golden(basic));
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.out.find(" ms"), std::string::npos) << r.out;
  EXPECT_EQ(run(golden(basic)).out.find(" ms"), std::string::npos);
}

TEST_F(replay_program, other_types_are_judged_on_the_rounded_inputs) {
  for (const std::string type : {"f64", "f32", "bf16", "f16"}) {
    const auto r = run("--no-skip --dtype " + type + " " + golden(basic));
    EXPECT_EQ(r.status, 0) << type << ": " << r.out;
  }
  // The file's own values are those of the unrounded inputs: this limit is below what rounding x alone does.
  const auto r = run("--dtype f16 --tolerance-factor 0.3 " + golden(basic));
  EXPECT_EQ(r.status, 0) << r.out;
}

TEST_F(replay_program, a_value_beyond_the_type_is_skipped) {
  const auto path = edited(basic, [](edited_case& c) {
    auto& x = c.tensors.at("in.x");
    const float beyond = 1e5f;
    std::memcpy(x.bytes.data(), &beyond, sizeof beyond);
  });
  const auto r = run("--dtype f16 " + path);
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.out.find("in.x leaves the range of f16"), std::string::npos) << r.out;
  EXPECT_EQ(run("--no-skip --dtype f16 " + path).status, 1);
}

TEST_F(replay_program, no_tolerance_fails) {
  const auto r = run("--tolerance-factor 0 " + golden(basic));
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("FAIL causal_conv1d"), std::string::npos) << r.out;
  EXPECT_TRUE(r.out.ends_with("0 passed, 1 failed, 0 skipped\n")) << r.out;
}

TEST_F(replay_program, one_wrong_expected_value_fails) {
  for (const std::string tensor : {"out.y", "out.final_state"}) {
    const auto path = edited(basic, [&](edited_case& c) {
      auto& bytes = c.tensors.at(tensor).bytes;
      double value = 0;
      std::memcpy(&value, bytes.data(), sizeof value);
      value += 0.1;
      std::memcpy(bytes.data(), &value, sizeof value);
    });
    const auto r = run(path);
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.out.find(tensor + " error"), std::string::npos) << r.out;
  }
}

TEST_F(replay_program, each_pass_judges_its_own_tensors) {
  const auto wrong = [&](const std::string& tensor) {
    return edited(basic, [&](edited_case& c) {
      double value = 0;
      auto& bytes = c.tensors.at(tensor).bytes;
      std::memcpy(&value, bytes.data(), sizeof value);
      value += 0.1;
      std::memcpy(bytes.data(), &value, sizeof value);
    });
  };
  for (const auto& [tensor, failing, passing] :
       {std::array<std::string, 3>{"out.y", "forward", "backward"}, {"din.weight", "backward", "forward"}}) {
    const auto path = wrong(tensor);
    EXPECT_EQ(run("--no-skip --pass " + passing + " " + path).status, 0) << tensor;
    for (const auto& pass : {failing, std::string("all")}) {
      const auto r = run("--pass " + pass + " " + path);
      EXPECT_EQ(r.status, 1) << tensor;
      EXPECT_NE(r.out.find("FAIL causal_conv1d " + basic + ": " + tensor + " error"), std::string::npos) << r.out;
    }
  }
}

TEST_F(replay_program, an_absent_upstream_gradient_is_zero) {
  const auto without = edited(basic, [](edited_case& c) { c.tensors.erase("grad.y"); });
  EXPECT_EQ(run("--pass forward " + without).status, 0);
  EXPECT_EQ(run("--pass backward " + without).status, 1);
  const auto zero = edited("causal_conv1d__w3_plain", [](edited_case& c) {
    c.tensors.erase("grad.y");
    c.tensors.erase("grad.final_state");
    const auto shape = c.tensors.at("din.weight").shape;
    const std::vector<double> zeros(static_cast<std::size_t>(shape[0] * shape[1]), 0.0);
    c.tensors.erase("din.x");
    c.set("din.weight", shape, zeros);
  });
  EXPECT_EQ(run("--no-skip --pass backward " + zero).status, 0);
}

TEST_F(replay_program, an_upstream_gradient_of_no_output_is_named) {
  const auto path = edited(basic, [](edited_case& c) { c.set("grad.x", {1}, {0}); });
  const auto r = run(path);
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find("; grad.x not used"), std::string::npos) << r.out;
  EXPECT_EQ(run("--pass forward " + path).out.find("grad.x"), std::string::npos);
}

// The router `uniform` does not read gamma: its gradient is 0, and only 0 is right.
TEST_F(replay_program, the_gradient_of_an_input_that_is_not_read_is_zero) {
  const auto with_gradient = [&](double value) {
    return edited("routing__uniform_window_topk", [&](edited_case& c) {
      const auto constant = [&](const std::string& name, const st::shape_type& shape, double of_all) {
        const auto size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
        c.set(name, shape, std::vector<double>(static_cast<std::size_t>(size), of_all));
      };
      constant("grad.lam", c.tensors.at("out.lam").shape, 1);
      constant("din.gamma", c.tensors.at("in.gamma").shape, value);
    });
  };
  for (const std::string type : {"f32", "bf16"}) {
    const auto r = run("--no-skip --pass backward --dtype " + type + " " + with_gradient(0));
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_NE(r.out.find("din.gamma error"), std::string::npos) << r.out;
  }
  EXPECT_EQ(run("--pass backward " + with_gradient(0.1)).status, 1);
}

TEST_F(replay_program, a_backward_that_is_not_there_is_named) {
  const auto path = edited("multi_state_step__gdn_start", [](edited_case& c) { c.set("din.q", {1}, {0}); });
  const auto all = run("--no-skip " + path);
  EXPECT_EQ(all.status, 0) << all.out;
  EXPECT_NE(all.out.find("; no reference backward yet, din.* not checked"), std::string::npos) << all.out;
  const auto backward = run("--pass backward " + path);
  EXPECT_EQ(backward.status, 0);
  EXPECT_TRUE(backward.out.starts_with("skip ")) << backward.out;
  EXPECT_NE(backward.out.find(": no reference backward yet"), std::string::npos) << backward.out;
  EXPECT_EQ(run("--no-skip --pass backward " + path).status, 1);
  EXPECT_EQ(run("--no-skip --pass forward " + path).out.find("not checked"), std::string::npos);
}

TEST_F(replay_program, nan_where_none_is_expected_fails) {
  const auto path = edited(basic, [](edited_case& c) {
    const double nan = std::nan("");
    std::memcpy(c.tensors.at("out.y").bytes.data(), &nan, sizeof nan);
  });
  EXPECT_EQ(run(path).status, 1);
}

TEST_F(replay_program, what_is_not_there_is_skipped_with_the_reason) {
  const auto operator_ = edited(basic, [](edited_case& c) { c.metadata["op"] = "no_such_operator"; });
  const auto option = edited("causal_conv1d__t0", [](edited_case& c) { c.metadata["param.activation"] = "tanh"; });
  for (const auto& [arguments, reason] :
       {std::pair{operator_, "operator not there yet"}, std::pair{option, "activation \"tanh\" is not there yet"},
        std::pair{"--pass backward " + golden("causal_conv1d__t0"), "the case has no gradients"}}) {
    const auto r = run(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_NE(r.out.find(reason), std::string::npos) << r.out;
    EXPECT_TRUE(r.out.ends_with("0 passed, 0 failed, 1 skipped\n")) << r.out;
    EXPECT_EQ(run("--no-skip " + arguments).status, 1);
  }
}

TEST_F(replay_program, bad_arguments) {
  const std::string file = golden(basic);
  for (const std::string& arguments :
       {std::string(), "--exec tpu " + file, "--dtype f8 " + file, "--pass sideways " + file,
        "--tolerance-factor -1 " + file, "--tolerance-factor nan " + file, "--tolerance-factor x " + file,
        "--repeat 0 " + file, "--no-such-option " + file, "--out " + in_folder("o") + " " + file + " " + file,
        "--out " + file + " " + file}) {
    const auto r = run(arguments);
    EXPECT_EQ(r.status, 2) << arguments;
    EXPECT_NE(r.err, "") << arguments;
    EXPECT_EQ(r.out, "") << arguments;
  }
  EXPECT_EQ(run("--help").status, 0);
}

struct fault {
  const char* text;  // after the file's name
  void (*edit)(edited_case&);
};

const fault faults[] = {
    {"tensor \"in.x\"", [](edited_case& c) { c.tensors.erase("in.x"); }},
    {"tensor \"out.y\"", [](edited_case& c) { c.tensors.erase("out.y"); }},
    {"tensor \"in.x\"", [](edited_case& c) { c.tensors.at("in.x").shape.push_back(1); }},
    {"tensor \"in.x\"", [](edited_case& c) { c.tensors.at("in.x").type = st::dtype::i32; }},
    {"tensor \"in.x\"", [](edited_case& c) { c.tensors.at("in.x").type = st::dtype::u32; }},
    {"tensor \"in.cu_seqlens\"", [](edited_case& c) { c.set("in.cu_seqlens", {1}, {0}); }},
    {"tensor \"out.z\"", [](edited_case& c) { c.set("out.z", {1}, {0}); }},
    {"tensor \"din.z\"", [](edited_case& c) { c.set("din.z", {1}, {0}); }},
    {"d_x: shape",
     [](edited_case& c) {
       c.set("din.x", {1, 1, 1}, {0});
     }},
    {"tensor \"grad.y\"", [](edited_case& c) { c.tensors.at("grad.y").shape.push_back(1); }},
    {"tensor \"x\"", [](edited_case& c) { c.set("x", {1}, {0}); }},
    {"tensor \"in.x\"",
     [](edited_case& c) {
       c.set("in.x", {1 << 20, 1 << 20, 0}, {});
     }},
    {"weight: shape",
     [](edited_case& c) { std::swap(c.tensors.at("in.weight").shape[0], c.tensors.at("in.weight").shape[1]); }},
    {"param.activation", [](edited_case& c) { c.metadata.erase("param.activation"); }},
    {"format", [](edited_case& c) { c.metadata["format"] = "polystate-case-2"; }},
    {"op", [](edited_case& c) { c.metadata.erase("op"); }},
    {"dtype", [](edited_case& c) { c.metadata["dtype"] = "f128"; }},
    {"f32_err.out.y", [](edited_case& c) { c.metadata["f32_err.out.y"] = "-1"; }},
    {"f32_err.out.y", [](edited_case& c) { c.metadata["f32_err.out.y"] = "small"; }},
};

TEST_F(replay_program, a_malformed_case_is_named_and_the_others_still_run) {
  for (const auto& f : faults) {
    const auto path = edited(basic, f.edit);
    const auto r = run("--tolerance-factor 0 " + path + " " + golden(basic));
    EXPECT_EQ(r.status, 2) << f.text;  // though a case failed, too
    EXPECT_NE(r.err.find(path), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(f.text), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(r.out.ends_with("0 passed, 1 failed, 0 skipped\n")) << r.out;
  }
}

TEST_F(replay_program, a_parameter_of_another_type_is_malformed) {
  for (const std::string parameter : {"scale", "qk_l2norm", "l2norm_eps"}) {
    const auto path =
        edited("gated_delta_rule__t1_decode", [&](edited_case& c) { c.metadata["param." + parameter] = "0.5x"; });
    const auto r = run(path);
    EXPECT_EQ(r.status, 2) << parameter;
    EXPECT_NE(r.err.find("param." + parameter), std::string::npos) << r.err;
  }
}

// A file of a later version: its expected values were made with what is not known here.
TEST_F(replay_program, an_unknown_parameter_is_refused_by_every_operator) {
  std::map<std::string, std::string> case_of;  // by operator
  for (const auto& entry : std::filesystem::directory_iterator(REPLAY_CASES)) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() == ".safetensors") case_of.emplace(name.substr(0, name.find("__")), name);
  }
  EXPECT_GE(case_of.size(), 15U);
  std::string paths;
  for (const auto& [operator_, name] : case_of) {
    paths += " " + edited(name, [](edited_case& c) { c.metadata["param.a_later_one"] = "1"; });
  }
  const auto r = run(paths);
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.out, "0 passed, 0 failed, 0 skipped\n");
  for (const auto& [operator_, name] : case_of) {
    EXPECT_NE(r.err.find(name + ".safetensors: param.a_later_one: unknown to " + operator_ + ", supported: "),
              std::string::npos)
        << r.err;
  }
}

TEST_F(replay_program, a_parameter_of_another_operator_is_unknown) {
  const auto path = edited(basic, [](edited_case& c) { c.metadata["param.l2norm_eps"] = "0.01"; });
  const auto r = run(path);
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error " + path + ": param.l2norm_eps: unknown to causal_conv1d, supported: activation\n");
}

TEST_F(replay_program, unreadable_files) {
  const auto truncated = in_folder("truncated.safetensors");
  std::ofstream(truncated) << content_of(golden(basic)).substr(0, 5000);
  for (const std::string& path : {in_folder("missing"), in_folder("."), truncated}) {
    const auto r = run(path);
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find(path), std::string::npos) << r.err;
  }
}

TEST_F(replay_program, out_holds_what_was_computed) {
  for (const std::string type : {"f64", "f32", "bf16"}) {
    const auto path = in_folder("computed.safetensors");
    ASSERT_EQ(run("--dtype " + type + " --out " + path + " " + golden(basic)).status, 0);
    const auto written = st::read(path);
    const auto expected = st::read(golden(basic));
    ASSERT_EQ(written.tensors().size(), 6U);  // two outputs, four gradients
    // In bf16 mostly the inputs' own rounding, summed over time in the weights' gradient.
    const double limit = type == "f64" ? 1e-14 : type == "f32" ? 1e-6 : 5e-2;
    for (const auto& [name, t] : written.tensors()) {
      EXPECT_EQ(t.shape, expected.at(name).shape);
      const auto got = written.values<double>(name);
      const auto want = expected.values<double>(name);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], limit * (1 + std::abs(want[i]))) << name << " " << i;
      }
    }
    // Put back in the place of the expected values, they leave no error at all.
    const auto again = edited(basic, [&](edited_case& c) {
      for (const auto& [name, t] : written.tensors()) c.set(name, t.shape, written.values<double>(name));
    });
    if (type != "bf16") {  // there the expected values come from the definition
      EXPECT_EQ(run("--no-skip --tolerance-factor 0 --dtype " + type + " " + again).status, 0) << type;
    }
  }
  EXPECT_EQ(run("--out /dev/full " + golden(basic)).status, 2);
  EXPECT_EQ(run("--out " + in_folder("no/such/folder") + " " + golden(basic)).status, 2);
}

}  // namespace
