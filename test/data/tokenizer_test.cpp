// Tokenizers: bytes and GPT-2's BPE, on vocabularies made up here, and the documents of shards. With
// PLUSGPT_GPT2_VOCAB=DIR (GPT-2's published files) known encodings are checked too.
#include "data/tokenizer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/utf8.h"
#include "data/encode.h"
#include "data/gpt2_bpe.h"
#include "test/support/temp_dir.h"

namespace {

using Tokens = std::vector<int>;
using Pairs = std::vector<std::pair<std::string, std::string>>;  // merges, as they are written in the file

std::string letter(int byte) {  // how the vocabulary files write a byte
  int next = 256;
  std::string text;
  for (int b = 0; b <= byte; b++) {
    const bool visible = (b > 32 && b < 127) || (b > 160 && b < 256 && b != 173);
    text.clear();
    utf8_append(text, visible ? b : next++);
  }
  return text;
}

struct Files {  // a small vocabulary: bytes are 0 to 255, then the results of merges, then <|endoftext|>
  nlohmann::json vocabulary;
  std::string merges = "#version: 0.2\n";
  explicit Files(const Pairs& pairs) {
    for (int byte = 0; byte < 256; byte++) vocabulary[letter(byte)] = byte;
    for (auto& [left, right] : pairs) {
      if (!vocabulary.contains(left + right)) vocabulary[left + right] = vocabulary.size();
      merges += left + " " + right + "\n";
    }
    vocabulary["<|endoftext|>"] = vocabulary.size();
  }
};

const Pairs hello_merges = {{"h", "e"}, {"l", "l"},   {"he", "ll"}, {"hell", "o"}, {"Ġ", "w"},
                            {"o", "r"}, {"Ġw", "or"}, {"l", "d"},   {"Ġwor", "ld"}};
constexpr int hello = 259, space_world = 264, separator = 265;

struct Gpt2 : testing::Test {
  TempDir dir;
  Files files{hello_merges};
  std::unique_ptr<Tokenizer> open() {
    write_file(dir / "vocab.json", files.vocabulary.dump());
    write_file(dir / "merges.txt", files.merges);
    return open_tokenizer(TokenizerKind::gpt2, dir.path);
  }
  void expect_bad(std::initializer_list<std::string> parts) {
    expect_user_error([&] { open(); }, parts);
  }
};

TEST(Bytes, OneTokenPerByte) {
  auto tokenizer = open_tokenizer(TokenizerKind::bytes, "");
  const std::string text = std::string("a\0\xff\xc3\xa9", 5);
  EXPECT_EQ(tokenizer->encode(text), (Tokens{97, 0, 255, 195, 169}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->decode({65, 256, -1, 66}),
            "A\xef\xbf\xbd\xef\xbf\xbd"
            "B");
  EXPECT_EQ(tokenizer->vocab(), 256);
  EXPECT_EQ(tokenizer->end_of_text(), -1);
}

TEST(Utf8, InvalidBytesAreReplacedOneByOne) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("a\u00e9\u20ac\U0001f600"), "a\u00e9\u20ac\U0001f600");
  EXPECT_EQ(valid_utf8(std::string("\0", 1)), std::string("\0", 1));
  EXPECT_EQ(valid_utf8("\x80x\xff"), r + "x" + r);
  EXPECT_EQ(valid_utf8("x\xe2\x82"), "x" + r + r);                                // cut short at the end
  EXPECT_EQ(valid_utf8("\xe2\x82z"), r + r + "z");                                // cut short by another character
  EXPECT_EQ(valid_utf8("\xc0\xaf\xe0\x80\xaf"), r + r + r + r + r);               // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), r + r + r);                               // a surrogate
  EXPECT_EQ(valid_utf8("\xed\x9f\xbf\xee\x80\x80"), "\xed\x9f\xbf\xee\x80\x80");  // its neighbours
  EXPECT_EQ(valid_utf8("\xf4\x8f\xbf\xbf"), "\xf4\x8f\xbf\xbf");
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80\xf5"), r + r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xf0\x8f\xbf\xbf"), r + r + r + r);
}

TEST_F(Gpt2, DecodesBytesEvenPartsOfCharacters) {
  auto tokenizer = open();
  EXPECT_EQ(tokenizer->decode({hello, space_world, separator}), "hello world<|endoftext|>");
  EXPECT_EQ(tokenizer->decode({0xe2, 0x82}), "\xe2\x82");
  EXPECT_EQ(tokenizer->decode({0xe2, 0x82, 0xac}), "\u20ac");
  EXPECT_EQ(tokenizer->decode({0, 32, 173, 266, -7}), std::string("\0 \xad\xef\xbf\xbd\xef\xbf\xbd", 9));
  EXPECT_EQ(tokenizer->decode({}), "");
  EXPECT_EQ(tokenizer->encode(""), Tokens{});
  EXPECT_EQ(tokenizer->vocab(), 266);
  EXPECT_EQ(tokenizer->end_of_text(), separator);
}

TEST_F(Gpt2, MissingFilesAreNamed) {
  expect_user_error([] { open_tokenizer(TokenizerKind::gpt2, ""); },
                    {"generate.tokenizer_dir is empty", "encoder.json", "vocab.bpe"});
  expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir / "none"); },
                    {dir / "none", "vocab.json", "encoder.json"});
  write_file(dir / "encoder.json", files.vocabulary.dump());
  expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir.path); }, {dir.path, "merges.txt", "vocab.bpe"});
  ::mkdir((dir / "vocab.bpe").c_str(), 0755);
  expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir.path); }, {dir / "vocab.bpe", "Is a directory"});
  ::rmdir((dir / "vocab.bpe").c_str());
  write_file(dir / "vocab.bpe", files.merges);
  EXPECT_EQ(open_tokenizer(TokenizerKind::gpt2, dir.path)->vocab(), 266);
  ::chmod((dir / "vocab.bpe").c_str(), 0);
  without_root([&] {
    expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir.path); }, {dir / "vocab.bpe", "Permission denied"});
  });
}

TEST_F(Gpt2, DamagedVocabulariesAreRefused) {
  const nlohmann::json good = files.vocabulary;
  const std::string name = dir / "vocab.json";
  for (const std::string& text : {good.dump().substr(0, 2000), std::string(), std::string("\xff\xfe")}) {
    write_file(name, text);
    write_file(dir / "merges.txt", files.merges);
    expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir.path); }, {name, "not valid JSON"});
  }
  for (const char* text : {"[]", "{}", "3", "[\"a\"]"}) {
    files.vocabulary = nlohmann::json::parse(text);
    expect_bad({name, "one JSON object"});
  }
  for (const nlohmann::json& id : {nlohmann::json(266), nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("7"),
                                   nlohmann::json(~uint64_t(0)), nlohmann::json(nullptr)}) {
    files.vocabulary = good;
    files.vocabulary["hello"] = id;
    expect_bad({name, "\"hello\"", id.dump(), "0 to 265"});
  }
  write_file(name, "{\"hello\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}");
  expect_user_error([&] { open_tokenizer(TokenizerKind::gpt2, dir.path); }, {name, "levels of nested JSON"});
  files.vocabulary = good;
  files.vocabulary[std::string(1 << 20, 'x')] = "y";
  EXPECT_LT(error_of([&] {
              write_file(name, files.vocabulary.dump()), open_tokenizer(TokenizerKind::gpt2, dir.path);
            }).size(),
            1000u);
  files.vocabulary = good;
  files.vocabulary["hello"] = 7;
  expect_bad({name, "\"hello\"", "the same number 7"});
  files.vocabulary = good;
  files.vocabulary.erase(letter(10));
  files.vocabulary["other"] = 10;
  expect_bad({name, "byte 10", letter(10), "byte-level"});
}

TEST_F(Gpt2, DamagedMergesAreRefused) {
  const std::string good = files.merges, name = dir / "merges.txt";
  for (const char* line : {"hello", "he l l", "he ", " he", "he  ll"}) {
    files.merges = good + line + "\n";
    expect_bad({name, "line 11", line, "not two tokens"});
  }
  files.merges = good + "he o\n";
  expect_bad({name, "line 11", "\"heo\" is not in", dir / "vocab.json"});
  files.merges = good + "zz y\n";
  expect_bad({name, "line 11", "\"zz\" is not in"});
  files.merges = good.substr(0, good.rfind("l d"));  // cut between two lines
  expect_bad({name, "no merge makes token 263, \"ld\"", dir / "vocab.json"});
  files.merges = "";
  expect_bad({name, "no merge makes token 256, \"he\""});
}

#if HAVE_PCRE2

// What encode_documents writes for a text that it reads in blocks of this size.
Tokens documents(const Tokenizer& tokenizer, const std::string& text, size_t block = 1 << 22, size_t most = INT_MAX) {
  std::FILE *in = std::tmpfile(), *out = std::tmpfile();
  std::fwrite(text.data(), 1, text.size(), in);
  std::rewind(in);
  encode_documents(tokenizer, in, out, block, most);
  std::rewind(out);
  Tokens tokens;
  for (uint16_t token; std::fread(&token, 2, 1, out) == 1;) tokens.push_back(token);
  std::fclose(in), std::fclose(out);
  return tokens;
}

std::vector<std::string> pieces(const std::string& text) {
  std::vector<std::string> result;
  for (auto piece : split_gpt2(text)) result.emplace_back(piece);
  return result;
}

TEST(Split, AsGpt2Does) {
  using P = std::vector<std::string>;
  EXPECT_EQ(pieces(""), P{});
  EXPECT_EQ(pieces("hello world"), (P{"hello", " world"}));
  EXPECT_EQ(pieces("It's we've I'd, don't you'll"),
            (P{"It", "'s", " we", "'ve", " I", "'d", ",", " don", "'t", " you", "'ll"}));
  EXPECT_EQ(pieces("IT'S 'x 's''"), (P{"IT", "'", "S", " '", "x", " '", "s", "''"}));  // contractions are lower case
  EXPECT_EQ(pieces("a'x b'dd"), (P{"a", "'", "x", " b", "'d", "d"}));
  EXPECT_EQ(pieces("a  b"), (P{"a", " ", " b"}));  // the last space goes with the word
  EXPECT_EQ(pieces("a \n b"), (P{"a", " \n", " b"}));
  EXPECT_EQ(pieces("a\n\nb"), (P{"a", "\n", "\n", "b"}));  // a newline does not
  EXPECT_EQ(pieces("a   "), (P{"a", "   "}));
  EXPECT_EQ(pieces("x2y 34 5.6"), (P{"x", "2", "y", " 34", " 5", ".", "6"}));
  EXPECT_EQ(pieces("$%^ &*"), (P{"$%^", " &*"}));
  EXPECT_EQ(pieces("na\u00efve \u4f60\u597d\u3002"), (P{"na\u00efve", " \u4f60\u597d", "\u3002"}));
  EXPECT_EQ(pieces("e\u0301x"), (P{"e", "\u0301", "x"}));                    // a combining mark is not a letter
  EXPECT_EQ(pieces("x\u00b2\u2163\u0663"), (P{"x", "\u00b2\u2163\u0663"}));  // superscript, Roman, Arabic: numbers
  EXPECT_EQ(pieces("\U0001d400\U0001f600!"), (P{"\U0001d400", "\U0001f600!"}));
  EXPECT_EQ(pieces("a\u00a0b"), (P{"a", "\u00a0", "b"}));  // white space, but not the space that leads a word
  EXPECT_EQ(pieces("a\u3000\u2003 b"), (P{"a", "\u3000\u2003", " b"}));
  EXPECT_EQ(pieces("a\u0085\u2028b"), (P{"a", "\u0085", "\u2028", "b"}));
  EXPECT_EQ(pieces("a\x1c\u200b\u180e!"), (P{"a", "\x1c\u200b\u180e!"}));  // none of these is white space
  EXPECT_EQ(pieces(std::string("a\0b", 3)), (P{"a", std::string("\0", 1), "b"}));
}

TEST_F(Gpt2, MergesByRank) {
  auto tokenizer = open();
  EXPECT_EQ(tokenizer->encode("hello world"), (Tokens{hello, space_world}));
  EXPECT_EQ(tokenizer->encode("hell"), Tokens{258});
  EXPECT_EQ(tokenizer->encode("helo"), (Tokens{256, 'l', 'o'}));
  EXPECT_EQ(tokenizer->encode("lll"), (Tokens{257, 'l'}));  // from the left
  EXPECT_EQ(tokenizer->encode("lld"), (Tokens{257, 'd'}));  // "l l" comes before "l d"
  EXPECT_EQ(tokenizer->encode("world"), (Tokens{'w', 261, 263}));
  EXPECT_EQ(tokenizer->encode("\u20ac"), (Tokens{0xe2, 0x82, 0xac}));
}

TEST_F(Gpt2, BothFileNamesAndLineEnds) {
  write_file(dir / "encoder.json", files.vocabulary.dump(2));
  std::string merges = "#version: 0.2\r\n";
  for (auto& [left, right] : hello_merges) merges += left + " " + right + "\r\n";
  write_file(dir / "vocab.bpe", merges);
  EXPECT_EQ(open_tokenizer(TokenizerKind::gpt2, dir.path)->encode("hello world"), (Tokens{hello, space_world}));
  write_file(dir / "vocab.bpe", files.merges.substr(files.merges.find('\n') + 1));
  EXPECT_EQ(open_tokenizer(TokenizerKind::gpt2, dir.path)->encode("hello world"), (Tokens{hello, space_world}));
}

TEST_F(Gpt2, ATokenizerJsonThatSaysSomethingElseIsNoticed) {
  using nlohmann::json;
  open();
  json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json whole = {{"added_tokens", {{{"content", "<|endoftext|>"}}}},
                {"normalizer", nullptr},
                {"pre_tokenizer", bytes},
                {"post_processor", bytes},
                {"model", {{"vocab", files.vocabulary}, {"merges", std::vector<std::string>(hello_merges.size())}}}};
  auto said = [&](const char* at = nullptr, const json& value = {}) {
    json changed = whole;
    if (at) changed[json::json_pointer(at)] = value;
    write_file(dir / "tokenizer.json", changed.dump());
    return open()->warning();
  };
  EXPECT_EQ(said(), "");
  const std::pair<const char*, json> others[] = {
      {"/pre_tokenizer", nullptr},         {"/pre_tokenizer/add_prefix_space", true},
      {"/pre_tokenizer/use_regex", false}, {"/pre_tokenizer/type", "Split"},
      {"/normalizer", {{"type", "NFC"}}},  {"/added_tokens/0/content", "<sep>"},
      {"/post_processor/type", "x"},       {"/model/vocab/hello", 7},
      {"/model/merges", json::array()}};
  for (const auto& [at, value] : others) {
    std::string warned = said(at, value), name = std::string(at).substr(1);
    expect_has(warned, {dir / "tokenizer.json", "checkpoints: "});
    for (const char* key : {"pre_tokenizer", "normalizer", "added_tokens", "post_processor", "vocab", "merges"})
      EXPECT_EQ(warned.substr(warned.find("checkpoints: ")).find(key) != warned.npos, name.find(key) != name.npos)
          << at;
  }
  write_file(dir / "tokenizer.json", "{");
  expect_has(open()->warning(), {"not valid JSON"});
}

TEST_F(Gpt2, EndOfTextIsOneToken) {
  auto tokenizer = open();
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), Tokens{separator});
  EXPECT_EQ(tokenizer->encode("hello<|endoftext|><|endoftext|> world"),
            (Tokens{hello, separator, separator, space_world}));
  EXPECT_EQ(tokenizer->encode("<|endoftext|").size(), 12u);
  EXPECT_EQ(tokenizer->encode("a <|endoftext|>"), (Tokens{'a', ' ', separator}));
}

TEST_F(Gpt2, AnyBytesComeBack) {
  auto tokenizer = open();
  for (const std::string text :
       {"hello\xff\xfe world", "\x80", "\xe2\x82", "hello \xc3", "\xed\xa0\x80hello world\xf0\x9f"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode("\xc3hello"), (Tokens{0xc3, hello}));
  std::mt19937 random(1);
  for (int i = 0; i < 2000; i++) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = random() % 3 ? "hello world<|endoftext|>"[random() % 24] : char(random());
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

// The definition, implemented slowly: find the pair of the lowest rank, merge all its occurrences from left to right,
// and repeat.
Tokens merged_slowly(const std::string& piece, const Pairs& merges, const nlohmann::json& vocabulary) {
  std::vector<std::string> word;
  for (unsigned char byte : piece) word.push_back(letter(byte));
  while (true) {
    auto best = merges.end();
    for (size_t i = 0; i + 1 < word.size(); i++)
      best = std::min(best, std::find(merges.begin(), merges.end(), std::pair(word[i], word[i + 1])));
    if (best == merges.end()) break;
    for (size_t i = 0; i + 1 < word.size(); i++)
      if (std::pair(word[i], word[i + 1]) == *best) {
        word[i] += word[i + 1];
        word.erase(word.begin() + i + 1);
      }
  }
  Tokens tokens;
  for (const std::string& token : word) tokens.push_back(vocabulary[token]);
  return tokens;
}

TEST_F(Gpt2, RandomVocabulariesAgreeWithTheDefinition) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; round++) {
    Pairs merges;
    std::vector<std::string> tokens = {"a", "b", "c"};
    while (merges.size() < 30) {  // in any order: several merges may make a token, even after its first use
      const std::pair pair(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
      if (pair.first.size() + pair.second.size() > 8 || std::count(merges.begin(), merges.end(), pair)) continue;
      merges.push_back(pair);
      tokens.push_back(pair.first + pair.second);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    files = Files(merges);
    auto tokenizer = open();
    for (int i = 0; i < 50; i++) {
      std::string piece(1 + random() % 40, ' ');
      for (char& c : piece) c = "abc"[random() % (1 + round % 3)];
      EXPECT_EQ(tokenizer->encode(piece), merged_slowly(piece, merges, files.vocabulary)) << piece << "\n"
                                                                                          << files.merges;
    }
  }
}

TEST_F(Gpt2, APieceOfAMegabyteIsQuick) {
  auto tokenizer = open();
  std::string text;
  for (int i = 0; i < 200000; i++) text += "hello";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->encode(text), Tokens(200000, hello));
  EXPECT_EQ(tokenizer->encode(std::string(1000000, ' ') + "x").size(), 1000001u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));  // a quadratic merge takes hours
}

std::string random_text(std::mt19937& random, int length) {
  static const std::vector<std::pair<unsigned, unsigned>> blocks = {
      {0x20, 0x7e},     {0x20, 0x7e},     {0x9, 0xd},       {0x1c, 0x20},     {0x80, 0x24f},    {0x300, 0x36f},
      {0x370, 0x52f},   {0x5d0, 0x6ff},   {0x900, 0x97f},   {0x1680, 0x1690}, {0x1800, 0x1820}, {0x2000, 0x206f},
      {0x2150, 0x218b}, {0x2460, 0x24ff}, {0x3000, 0x30ff}, {0x4e00, 0x4eff}, {0xac00, 0xacff}, {0xfe00, 0xfeff}};
  static const char* const words[] = {"hello",      " world",     " hello",     "'s",          "'ll",
                                      "  ",         "\n\n",       " 12",        "<|endoftext", "<|",
                                      "\U0001f600", "\U0001d7d8", "\U00020000", "\U0001d400"};
  std::string text;
  while (length-- > 0) {
    if (random() % 2) {
      text += words[random() % std::size(words)];
    } else {
      const auto [first, last] = blocks[random() % blocks.size()];
      utf8_append(text, first + random() % (last - first + 1));
    }
  }
  return text;
}

TEST_F(Gpt2, EveryDocumentThatIsNotEmptyIsPrecededByASeparator) {
  auto tokenizer = open();
  EXPECT_EQ(documents(*tokenizer, ""), Tokens{});
  EXPECT_EQ(documents(*tokenizer, "hello world"), (Tokens{separator, hello, space_world}));
  EXPECT_EQ(documents(*tokenizer, "<|endoftext|>hello<|endoftext|><|endoftext|> world<|endoftext|>"),
            (Tokens{separator, hello, separator, space_world}));
}

TEST_F(Gpt2, WhereBlocksEndDoesNotMatter) {
  Pairs merges = hello_merges;
  merges.emplace_back(letter('\t'), letter(' '));
  files = Files(merges);
  auto tokenizer = open();
  std::mt19937 random(3);
  std::string text = "hello world\xff hello\n";
  for (int i = 0; i < 100; i++)
    text += random_text(random, 10) + (i % 9 ? "" : "<|endoftext|>") + (i % 7 ? "" : "\t  x");
  const Tokens whole = documents(*tokenizer, text);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), tokenizer->end_of_text()), 12);
  for (size_t block : {1, 2, 3, 7, 64, 1000}) EXPECT_EQ(documents(*tokenizer, text, block), whole) << block;
}

TEST_F(Gpt2, TextWithoutSpacesIsDividedWhereThePatternDoes) {
  auto tokenizer = open();
  std::mt19937 random(4);
  std::string text;
  for (int i = 0; i < 3000; i++)
    text += std::vector{"hello",         "12",     "'",         "ll",   "'s",       "\t",
                        "\t\t",          "\u3000", "\u4e2d",    "\xff", "\xe2\x82", "<|end",
                        "<|endoftext|>", "!",      "\U0001d400"}[random() % 15];
  const Tokens whole = documents(*tokenizer, text);
  for (size_t block : {1, 5, 64, 1000}) EXPECT_EQ(documents(*tokenizer, text, block), whole) << block;
}

// How much is held at once: read, but without its tokens, which are single bytes here.
TEST_F(Gpt2, MemoryDoesNotGrowWithTextWithoutSpaces) {
  struct Held {
    std::FILE* in;
    long written = 1, most = 0;  // 1: the separator
  } held{std::tmpfile()};
  for (int i = 0; i < 20000; i++) std::fputs("x1", held.in);
  std::rewind(held.in);
  auto count = [](void* to, const char*, size_t bytes) {
    auto* held = static_cast<Held*>(to);
    held->most = std::max(held->most, std::ftell(held->in) - (held->written - 1));
    held->written += long(bytes / 2);
    return ssize_t(bytes);
  };
  std::FILE* out = fopencookie(&held, "w", {.read = nullptr, .write = count, .seek = nullptr, .close = nullptr});
  std::setvbuf(out, nullptr, _IONBF, 0);
  encode_documents(*open(), held.in, out, 1000);
  std::fclose(out), std::fclose(held.in);
  EXPECT_GE(held.written, 40001);
  EXPECT_LE(held.most, 3000);
}

TEST_F(Gpt2, TextsThatAreTooLongAreRefused) {
  open();
  Gpt2Tokenizer tokenizer(dir.path, 10);
  EXPECT_EQ(tokenizer.encode("hellohello").size(), 2u);
  expect_user_error([&] { tokenizer.encode("hello hello"); }, {"11 bytes", "at most 10"});
  EXPECT_EQ(documents(*open(), std::string(12, 'x'), 4, 12).size(), 13u);
  EXPECT_EQ(documents(*open(), "hello hello hello", 4, 12).size(), 6u);  // it is divided between words
  expect_user_error([&] { documents(*open(), std::string(20, 'x'), 4, 12); }, {"--encode", "at most 12", "into lines"});
}

TEST_F(Gpt2, AVocabularyThatCannotSeparateDocumentsIsRefused) {
  files.vocabulary["<|other|>"] = files.vocabulary["<|endoftext|>"];
  files.vocabulary.erase("<|endoftext|>");
  expect_user_error([&] { documents(*open(), "hello"); }, {"--encode", "without <|endoftext|>"});
}

TEST(PublishedVocabulary, KnownEncodings) {
  const char* dir = std::getenv("PLUSGPT_GPT2_VOCAB");
  if (!dir) GTEST_SKIP() << "PLUSGPT_GPT2_VOCAB names no folder with GPT-2's vocabulary";
  auto tokenizer = open_tokenizer(TokenizerKind::gpt2, dir);
  EXPECT_EQ(tokenizer->vocab(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  EXPECT_EQ(tokenizer->encode("hello world"), (Tokens{31373, 995}));
  EXPECT_EQ(tokenizer->encode("Hello, I'm a language model,<|endoftext|>"),
            (Tokens{15496, 11, 314, 1101, 257, 3303, 2746, 11, 50256}));
}

#else

TEST_F(Gpt2, WithoutPcre2TextIsRefused) {
  auto tokenizer = open();
  expect_user_error([&] { tokenizer->encode("hello"); }, {"without PCRE2", "libpcre2-dev", "bytes"});
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), Tokens{separator});
}

#endif

}  // namespace
