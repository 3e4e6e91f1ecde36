// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A text as a memory sees it: a token is a pair of neighbouring words, together with the word that follows.

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace text_memory {

/// What the user gave cannot be used; what() says why, in one line.
struct bad_input : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The words of a text: maximal runs of [a-z0-9'], after lower-casing.
inline std::vector<std::string> split_into_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool of_word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '\'';
    if (of_word && !inside) words.emplace_back();
    if (of_word) words.back() += c;
    inside = of_word;
  }
  return words;
}

/// A text of n words has the tokens 0 .. n-3: token t is the pair of words t, t+1, followed by word t+2.
class text {
 public:
  using pair = std::pair<std::size_t, std::size_t>;

  explicit text(const std::vector<std::string>& words) {
    for (const auto& word : words) {
      const auto [found, is_new] = ids_.try_emplace(word, spelling_.size());
      if (is_new) spelling_.push_back(word);
      words_.push_back(found->second);
    }
    for (std::size_t t = 0; t < tokens(); ++t) tokens_of_pair_[pair_of(t)].push_back(t);
  }

  [[nodiscard]] std::size_t tokens() const { return words_.size() < 3 ? 0 : words_.size() - 2; }
  [[nodiscard]] std::size_t distinct_words() const { return spelling_.size(); }
  [[nodiscard]] pair pair_of(std::size_t token) const { return {words_[token], words_[token + 1]}; }
  [[nodiscard]] std::size_t next_word(std::size_t token) const { return words_[token + 2]; }
  [[nodiscard]] const std::string& spelling(std::size_t word) const { return spelling_[word]; }

  /// The tokens whose pair occurs once: of them, and of no others, one word is the right answer.
  [[nodiscard]] std::vector<std::size_t> questions() const {
    std::vector<std::size_t> once;
    for (std::size_t t = 0; t < tokens(); ++t) {
      if (tokens_of_pair_.at(pair_of(t)).size() == 1) once.push_back(t);
    }
    return once;
  }

  /// Every token of a pair of words, in the order of the text. Throws bad_input where there is none.
  [[nodiscard]] const std::vector<std::size_t>& find(const std::string& first, const std::string& second) const {
    const auto a = ids_.find(first);
    const auto b = ids_.find(second);
    if (a != ids_.end() && b != ids_.end()) {
      const auto found = tokens_of_pair_.find({a->second, b->second});
      if (found != tokens_of_pair_.end()) return found->second;
    }
    throw bad_input("the text has no \"" + first + " " + second + "\" with a word behind it");
  }

  /// The words that the tokens begin .. end-1 cover.
  [[nodiscard]] std::string words_of(std::size_t begin, std::size_t end) const {
    std::string words;
    for (std::size_t i = begin; i < end + 2; ++i) words += (i > begin ? " " : "") + spelling_[words_[i]];
    return words;
  }

 private:
  std::vector<std::size_t> words_;     // ids, in the order of the text
  std::vector<std::string> spelling_;  // by id
  std::map<std::string, std::size_t> ids_;
  std::map<pair, std::vector<std::size_t>> tokens_of_pair_;
};

/// Reads a file. Throws bad_input where it cannot be read or has too few words to ask about.
inline text read_text(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw bad_input(path + " is a folder");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw bad_input("cannot read \"" + path + "\"");
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  text read(split_into_words(content));
  if (read.tokens() == 0) {
    throw bad_input(path + " has too few words: it takes two to ask and one to answer");
  }
  if (read.questions().size() < 2) throw bad_input(path + " is too short: fewer than two pairs of words occur once");
  return read;
}

}  // namespace text_memory
