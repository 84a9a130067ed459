#include "data/gpt2_bpe.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <queue>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"

#ifndef HAVE_PCRE2
#define HAVE_PCRE2 0
#endif
#if HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace {

uint64_t pair_key(int left, int right) { return uint64_t(left) << 32 | uint32_t(right); }

// The vocabulary files write bytes as printable characters: a byte that is a visible Latin-1 character represents
// itself; the others are U+0100, U+0101, ... in order, so a space is "Ġ".
struct Alphabet {
  std::string of_byte[256];
  std::unordered_map<std::string, unsigned char> byte_of;
  Alphabet() {
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
      bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      utf8_append(of_byte[byte], visible ? byte : next++);
      byte_of[of_byte[byte]] = byte;
    }
  }
  std::string bytes(const std::string& written) const {  // text outside the alphabet (special tokens) is kept as it is
    std::string result;
    for (size_t i = 0, length; i < written.size(); i += length) {
      length = std::max<size_t>(1, utf8_length(written, i));
      auto found = byte_of.find(written.substr(i, length));
      if (found == byte_of.end()) return written;
      result += char(found->second);
    }
    return result;
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

std::string find_file(const std::string& dir, const char* name, const char* other) {
  for (const char* candidate : {name, other}) {
    std::string path = (std::filesystem::path(dir) / candidate).string();
    if (is_there(path)) return path;
  }
  user_error(
      "the tokenizer's folder \"%s\" has neither %s nor %s; it must hold the files of the tokenizer that made the "
      "training data: vocab.json or encoder.json, and merges.txt or vocab.bpe (docs/data.md says where GPT-2's are); "
      "generate.tokenizer_dir or --encode names it",
      dir.c_str(), name, other);
}

std::string read_file(const std::string& path) { return read_utf8_file(path, "tokenizer", size_t(1) << 28); }

}  // namespace

#if HAVE_PCRE2
std::vector<std::string_view> split_gpt2(std::string_view text) {
  // White space is spelled out: PCRE2's \s would add U+180E, which has not been white space since Unicode 6.3.
#define SPACE R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
  static const pcre2_code* const pattern = [] {
    const char* source = "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE
                         "])|[" SPACE "]+";
    int error;
    PCRE2_SIZE at;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, nullptr);
    if (!code)
      user_error("GPT-2 text needs a PCRE2 with Unicode; this one refuses the pattern (error %d at %zu)", error, at);
    return code;
  }();
#undef SPACE
  std::vector<std::string_view> pieces;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                            pcre2_match_data_free);
  for (size_t at = 0; at < text.size();) {
    int result = pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                             PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, match.get(), nullptr);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (result < 0 || range[1] <= at) failure("PCRE2 error %d at byte %zu of a text of %zu", result, at, text.size());
    pieces.push_back(text.substr(at, range[1] - at));
    at = range[1];
  }
  return pieces;
}
#else
std::vector<std::string_view> split_gpt2(std::string_view) {
  user_error(
      "this program was built without PCRE2, which splits GPT-2 text: install libpcre2-dev "
      "(scripts/install_deps.sh does) and build again, or use generate.tokenizer = \"bytes\"");
}
#endif

static const char *const VOCABULARY[] = {"vocab.json", "encoder.json"}, *const MERGES[] = {"merges.txt", "vocab.bpe"};

Gpt2Files gpt2_files(const std::string& dir) {
  // No member yet: if a call throws among those of a list, g++ 11 leaks the ones before it.
  std::string vocabulary = find_file(dir, VOCABULARY[0], VOCABULARY[1]);
  std::string merges = find_file(dir, MERGES[0], MERGES[1]);
  return {vocabulary, merges};
}

bool has_gpt2_files(const std::string& dir) {
  auto is_here = [&](const char* name) { return is_there(dir + "/" + name); };
  return std::ranges::any_of(VOCABULARY, is_here) && std::ranges::any_of(MERGES, is_here);
}

Gpt2Tokenizer::Gpt2Tokenizer(const std::string& dir, size_t most) : most_(most) {
  if (dir.empty())
    user_error(
        "generate.tokenizer_dir is empty; with generate.tokenizer = \"gpt2\" it names the folder with the files of the "
        "tokenizer that made the training data, GPT-2's or another byte-level BPE: vocab.json or encoder.json, and "
        "merges.txt or vocab.bpe");
  const auto [vocabulary, merges] = gpt2_files(dir);
  const Ids ids = load_vocabulary(vocabulary);
  load_merges(merges, vocabulary, ids);
  std::string beside = (std::filesystem::path(dir) / "tokenizer.json").string();
  std::string differs = is_there(beside) ? differences(beside, ids) : "";
  if (!differs.empty())
    warning_ = format(
        "%s is not read, and says something else than %s and %s with GPT-2's rules, which count here and in "
        "checkpoints: %s; make shards with scripts/prepare_text.py --tokenizer %s where it is the right one",
        beside.c_str(), vocabulary.c_str(), merges.c_str(), differs.c_str(), beside.c_str());
}

// What a tokenizer.json says otherwise than this tokenizer does.
std::string Gpt2Tokenizer::differences(const std::string& tokenizer_json, const Ids& ids) const {
  using nlohmann::json;
  json whole;
  try {
    whole = parse_json(read_file(tokenizer_json), "tokenizer", tokenizer_json);
  } catch (const UserError& error) {
    return error.what();
  }
  auto of = [](const json& object, const char* key, const json& otherwise = {}) {
    return object.is_object() ? object.value(key, otherwise) : otherwise;
  };
  auto is_byte_level = [&](const json& part) { return of(part, "type") == "ByteLevel"; };
  json pre = of(whole, "pre_tokenizer"), post = of(whole, "post_processor"), model = of(whole, "model");
  json vocabulary = of(model, "vocab"), added = of(whole, "added_tokens", json::array());
  bool spaces = of(pre, "add_prefix_space", true) != json(false), regex = of(pre, "use_regex", true) == json(true);
  bool others = std::ranges::any_of(added, [&](const json& token) { return of(token, "content") != END_OF_TEXT; });
  bool same = std::ranges::all_of(ids, [&](const auto& pair) {
    return pair.first == END_OF_TEXT || of(vocabulary, pair.first.c_str()) == pair.second;
  });
  std::string found;
  for (auto& [differs, name] :
       {std::pair(!is_byte_level(pre) || spaces || !regex, "pre_tokenizer"),
        std::pair(!of(whole, "normalizer").is_null(), "normalizer"), std::pair(others, "added_tokens"),
        std::pair(!post.is_null() && !is_byte_level(post), "post_processor"), std::pair(!same, "model.vocab"),
        std::pair(of(model, "merges", json::array()).size() != merges_.size(), "model.merges")})
    if (differs) append_item(found, name);
  return found;
}

static std::string quoted(const std::string& token) { return shortened(json_quote(token)); }

// As Python's zlib.crc32(): scripts/lib/common.py computes it too.
void Gpt2Tokenizer::add_to_checksum(std::string_view line) {
  auto add = [&](unsigned char byte) {
    crc32_ = ~crc32_ ^ byte;
    for (int bit = 0; bit < 8; bit++) crc32_ = crc32_ >> 1 ^ (crc32_ & 1 ? 0xedb88320 : 0);
    crc32_ = ~crc32_;
  };
  for (char byte : line) add(static_cast<unsigned char>(byte));
  add('\n');
}

Vocabulary Gpt2Tokenizer::vocabulary() const { return {"gpt2", vocab(), format("%08x", crc32_), end_of_text_}; }

Gpt2Tokenizer::Ids Gpt2Tokenizer::load_vocabulary(const std::string& path) {
  const char* p = path.c_str();
  nlohmann::json object = parse_json(read_file(path), "tokenizer", path);
  if (!object.is_object() || object.empty()) user_error("%s must hold one JSON object that maps tokens to numbers", p);
  Ids ids;
  std::vector<const std::string*> written(object.size(), nullptr);
  for (const auto& [text, id] : object.items()) {
    int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (number < 0 || number >= int64_t(object.size()))
      user_error("%s: token %s has number %s; %zu tokens are numbered 0 to %zu", p, quoted(text).c_str(),
                 shortened(id.dump()).c_str(), object.size(), object.size() - 1);
    auto [entry, is_new] = ids.emplace(text, int(number));
    if (is_new && written[number])
      user_error("%s: tokens %s and %s have the same number %ld", p, quoted(*written[number]).c_str(),
                 quoted(text).c_str(), number);
    written[number] = &entry->first;
  }
  for (const std::string* text : written) {
    bytes_of_.push_back(alphabet().bytes(*text));
    add_to_checksum(*text);
  }
  for (int byte = 0; byte < 256; byte++) {
    auto found = ids.find(alphabet().of_byte[byte]);
    if (found == ids.end())
      user_error("%s lacks the token for byte %d, \"%s\": it is not a byte-level BPE vocabulary like GPT-2's", p, byte,
                 alphabet().of_byte[byte].c_str());
    token_of_byte_[byte] = found->second;
  }
  if (auto found = ids.find(std::string(END_OF_TEXT)); found != ids.end()) end_of_text_ = found->second;
  return ids;
}

void Gpt2Tokenizer::load_merges(const std::string& path, const std::string& vocabulary_path, const Ids& ids) {
  const char *p = path.c_str(), *v = vocabulary_path.c_str();
  std::vector<bool> made(bytes_of_.size());
  for (int token : token_of_byte_) made[token] = true;
  std::istringstream file(read_file(path));
  std::string line;
  for (int number = 1; std::getline(file, line); number++) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
      user_error("%s line %d: \"%s\" is not two tokens with a space between them", p, number,
                 shortened(valid_utf8(line)).c_str());
    std::string left = line.substr(0, space), right = line.substr(space + 1);
    int tokens[3], i = 0;
    for (const std::string& text : {left, right, left + right}) {
      auto found = ids.find(text);
      if (found == ids.end())
        user_error("%s line %d: \"%s\" is not in %s: one of the two is damaged or belongs to another vocabulary", p,
                   number, shortened(valid_utf8(text)).c_str(), v);
      tokens[i++] = found->second;
    }
    made[tokens[2]] = true;
    add_to_checksum(line);
    merges_.try_emplace(pair_key(tokens[0], tokens[1]), Merge{int(merges_.size()), tokens[2]});
  }
  // A truncated list of merges would still work, but give other tokens, so every token must be a byte, the result of a
  // merge, or special.
  for (size_t token = 0; token < made.size(); token++)
    if (!made[token] && !bytes_of_[token].starts_with('<') && !bytes_of_[token].starts_with('['))
      user_error(
          "%s: no merge makes token %zu, \"%s\", of %s: one of the two is incomplete or belongs to another vocabulary",
          p, token, shortened(valid_utf8(bytes_of_[token])).c_str(), v);
}

// A list of tokens linked by position and a heap of the pairs that have a merge: n log n even for a piece of megabytes.
void Gpt2Tokenizer::merge_piece(std::string_view piece, std::vector<int>& out) const {
  int n = int(piece.size());
  struct Node {
    int token, previous, next;
  };  // token -1: merged into the previous node
  struct Pair {
    int rank, position, left, right, merged;
    bool operator>(const Pair& other) const { return std::tie(rank, position) > std::tie(other.rank, other.position); }
  };
  std::vector<Node> nodes(n);
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> heap;
  std::vector<Pair> found;
  auto look = [&](int position) {
    if (position < 0 || nodes[position].next == n) return;
    int left = nodes[position].token, right = nodes[nodes[position].next].token;
    auto merge = merges_.find(pair_key(left, right));
    if (merge != merges_.end()) found.push_back({merge->second.rank, position, left, right, merge->second.token});
  };
  for (int i = 0; i < n; i++) nodes[i] = {token_of_byte_[static_cast<unsigned char>(piece[i])], i - 1, i + 1};
  for (int i = 0; i < n; i++) look(i);
  while (true) {
    // New pairs wait until every occurrence of the current pair is merged, as in GPT-2's own encoder.
    for (const Pair& pair : found) heap.push(pair);
    found.clear();
    if (heap.empty()) break;
    int rank = heap.top().rank;
    for (; !heap.empty() && heap.top().rank == rank; heap.pop()) {
      const Pair& pair = heap.top();
      Node& node = nodes[pair.position];
      if (node.token != pair.left || node.next == n || nodes[node.next].token != pair.right) continue;  // out of date
      nodes[node.next].token = -1;
      node = {pair.merged, node.previous, nodes[node.next].next};
      if (node.next < n) nodes[node.next].previous = pair.position;
      look(node.previous);
      look(pair.position);
    }
  }
  for (int i = 0; i < n; i = nodes[i].next) out.push_back(nodes[i].token);
}

std::vector<int> Gpt2Tokenizer::encode(const std::string& text) const {
  if (text.size() > most_)
    user_error("a text of %zu bytes is too long to encode at once (at most %zu)", text.size(), most_);
  std::vector<int> tokens;
  std::unordered_map<std::string_view, std::pair<size_t, size_t>>
      known;  // piece -> where its tokens are: text repeats itself
  auto encode_piece = [&](std::string_view piece) {
    const auto [entry, is_new] = known.try_emplace(piece, tokens.size(), 0);
    auto& [first, last] = entry->second;
    if (is_new) {
      merge_piece(piece, tokens);
      last = tokens.size();
    } else {
      for (size_t i = first; i < last; i++) tokens.push_back(tokens[i]);
    }
  };
  auto encode_plain = [&](std::string_view plain) {
    for (size_t at = 0; at < plain.size();) {
      size_t end = at;
      while (size_t length = utf8_length(plain, end)) end += length;
      if (end > at)
        for (std::string_view piece : split_gpt2(plain.substr(at, end - at))) encode_piece(piece);
      for (at = end; end < plain.size() && !utf8_length(plain, end);) end++;
      if (end > at) merge_piece(plain.substr(at, end - at), tokens);
      at = end;
    }
  };
  std::string_view rest = text;
  size_t at = 0;
  while (true) {
    size_t special = end_of_text_ < 0 ? std::string_view::npos : rest.find(END_OF_TEXT, at);
    encode_plain(rest.substr(at, special == std::string_view::npos ? special : special - at));
    if (special == std::string_view::npos) return tokens;
    tokens.push_back(end_of_text_);
    at = special + END_OF_TEXT.size();
  }
}

std::string Gpt2Tokenizer::decode(const std::vector<int>& tokens) const {
  std::string text;
  for (int token : tokens) text += token >= 0 && token < vocab() ? bytes_of_[token] : UTF8_REPLACEMENT;
  return text;
}
