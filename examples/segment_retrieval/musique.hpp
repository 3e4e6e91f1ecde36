// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Questions with their paragraphs, from a JSON file in MuSiQue's format (Trivedi et al. 2022, arXiv:2108.00573).

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace segment_retrieval {

/// What the user gave cannot be used; what() says why, in one line.
struct bad_input : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Maximal runs of [a-z0-9], after lower-casing.
inline std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool of_word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (of_word && !inside) words.emplace_back();
    if (of_word) words.back() += c;
    inside = of_word;
  }
  return words;
}

/// A question and its paragraphs, as ids of words.
struct text_question {
  std::vector<std::size_t> words;
  std::vector<std::vector<std::size_t>> paragraphs;  ///< title and text
  std::vector<std::size_t> supporting;               ///< at least one
};

/// The questions of a file, and how many of its distinct paragraphs a word stands in.
class text_collection {
 public:
  /// Throws bad_input where the file cannot be read or a question cannot be asked.
  static text_collection read(const std::string& path) {
    if (std::filesystem::is_directory(path)) throw bad_input(path + " is a folder");
    std::ifstream in(path, std::ios::binary);
    if (!in) throw bad_input("cannot read \"" + path + "\"");
    text_collection all;
    try {
      for (const auto& entry : nlohmann::json::parse(in)) all.add(entry);
    } catch (const nlohmann::json::exception& e) {
      throw bad_input(path + ": question " + std::to_string(all.questions_.size()) + ": " + e.what());
    } catch (const bad_input& e) {
      throw bad_input(path + ": question " + std::to_string(all.questions_.size()) + ": " + e.what());
    }
    if (all.questions_.empty()) throw bad_input(path + " has no questions");
    all.count_paragraphs();
    return all;
  }

  [[nodiscard]] const std::vector<text_question>& questions() const { return questions_; }
  [[nodiscard]] std::size_t distinct_words() const { return ids_.size(); }
  [[nodiscard]] std::size_t distinct_paragraphs() const { return distinct_paragraphs_; }
  /// Distinct paragraphs that a word stands in; 0 for one of the questions alone.
  [[nodiscard]] std::size_t paragraphs_with(std::size_t word) const { return paragraphs_with_[word]; }

 private:
  void add(const nlohmann::json& entry) {
    text_question q;
    q.words = ids_of(entry.at("question").get<std::string>());
    if (q.words.empty()) throw bad_input("has no words");
    for (const auto& p : entry.at("paragraphs")) {
      const std::size_t number = q.paragraphs.size();
      q.paragraphs.push_back(
          ids_of(p.at("title").get<std::string>() + " " + p.at("paragraph_text").get<std::string>()));
      if (q.paragraphs.back().empty()) throw bad_input("paragraph " + std::to_string(number) + " has no words");
      if (p.at("is_supporting").get<bool>()) q.supporting.push_back(number);
    }
    if (q.supporting.empty()) throw bad_input("has no supporting paragraph");
    questions_.push_back(std::move(q));
  }
  std::vector<std::size_t> ids_of(const std::string& text) {
    std::vector<std::size_t> ids;
    for (const auto& word : words_of(text)) ids.push_back(ids_.try_emplace(word, ids_.size()).first->second);
    return ids;
  }
  void count_paragraphs() {
    std::vector<std::vector<std::size_t>> all;
    for (const auto& q : questions_) all.insert(all.end(), q.paragraphs.begin(), q.paragraphs.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    distinct_paragraphs_ = all.size();
    paragraphs_with_.assign(ids_.size(), 0);
    for (auto& p : all) {
      std::sort(p.begin(), p.end());
      p.erase(std::unique(p.begin(), p.end()), p.end());
      for (const std::size_t word : p) ++paragraphs_with_[word];
    }
  }

  std::vector<text_question> questions_;
  std::map<std::string, std::size_t> ids_;
  std::vector<std::size_t> paragraphs_with_;  // by word
  std::size_t distinct_paragraphs_ = 0;
};

}  // namespace segment_retrieval
