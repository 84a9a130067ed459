// Text to tokens and back, for prompts, generated text and, by data/encode.h, training text.
//   bytes  one token per byte, vocabulary 256.
//   gpt2   A byte-level BPE in GPT-2's files, its own or another of any size: a folder with vocab.json or encoder.json
//          and merges.txt or vocab.bpe. The text "<|endoftext|>" is the one special token (GPT-2's: 50256), as in
//          Hugging Face's tokenizers. Text is split by PCRE2's Unicode classes; a build without PCRE2 decodes, but
//          refuses to encode (other than empty text).
// encode() takes any bytes, and decode(encode(text)) == text; a run of bytes that is not UTF-8 is a piece of its own.
// decode() returns raw bytes, which may begin or end within a character: see base/utf8.h. A token that is not in the
// vocabulary (the model's may be larger, for alignment) becomes U+FFFD. All methods are const and thread-safe.
#pragma once
#include <memory>
#include <string>
#include <vector>

// Which tokenizer made some tokens, as far as that is known: X.json beside a shard says it (data/shards.h).
struct Vocabulary {
  std::string name;      // "bytes", "gpt2" (any in GPT-2's files) or the name of a tokenizer.json; "": nothing is known
  int tokens = 0;        // 0: unknown
  std::string crc32;     // of its content, 8 hexadecimal digits; "": unknown
  int end_of_text = -1;  // the token between documents; -1: there is none, or it is unknown
  bool known() const { return !name.empty(); }
  bool differs(const Vocabulary& other) const;  // false if either is not known
  std::string text() const;                     // for messages: gpt2, 1024 tokens, 0 between documents, CRC-32 0123abcd
};
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int>& tokens) const = 0;
  virtual int vocab() const = 0;        // tokens are 0 to vocab() - 1; the model's vocabulary must be at least that
  virtual int end_of_text() const = 0;  // the token before each document of the shards, -1 if there is none
  virtual std::string warning() const { return ""; }  // what a user should know of its files; "": nothing
  virtual Vocabulary vocabulary() const { return {"bytes", vocab(), "", end_of_text()}; }
};

// Whether a model of `vocab` tokens may be one of this tokenizer's: it may have a few more, for alignment.
inline bool vocabulary_fits(int tokens, int vocab) { return vocab >= tokens && vocab <= tokens + tokens / 32; }

enum class TokenizerKind { gpt2, bytes };
inline constexpr const char* tokenizer_kind_names[] = {"gpt2", "bytes"};
// dir: of gpt2, the folder with the tokenizer's files. A user_error if one is missing or damaged.
std::unique_ptr<Tokenizer> open_tokenizer(TokenizerKind kind, const std::string& dir);
