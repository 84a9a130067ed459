#include "base/json.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"

using nlohmann::json;

std::string json_quote(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_number(double x) {
  if (!std::isfinite(x)) return "null";
  char digits[64];
  double size = std::fabs(x);
  bool plain = size == 0 || (size >= 1e-5 && size < 1e16);  // 0.0006, but 1e-08
  auto style = plain ? std::chars_format::fixed : std::chars_format::scientific;
  auto end = std::to_chars(digits, digits + sizeof digits, x, style).ptr;
  return std::string(digits, end);
}

// Writes the place as "line 3, column 14" (columns count characters), and the line with a caret below it, both
// indented.
// Only the part of a long line near the place is shown; bytes that a terminal might act upon are shown as '?'.
static void describe_place(std::string_view text, size_t at, std::string& place, std::string& excerpt) {
  at = std::min(at, text.size());
  size_t line = 1 + std::count(text.begin(), text.begin() + at, '\n');
  size_t begin = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  begin = begin == std::string_view::npos ? 0 : begin + 1;
  size_t end = std::min(text.find('\n', at), text.size());
  size_t column = 1;
  for (size_t i = begin; i < at; i++) column += !is_utf8_continuation(text[i]);
  place = format("line %zu, column %zu", line, column);

  constexpr size_t SHOWN = 60;
  if (at - begin > SHOWN) begin = at - SHOWN;
  if (end - at > SHOWN) end = at + SHOWN;
  while (begin < at && is_utf8_continuation(text[begin])) begin++;
  while (end > at && end < text.size() && is_utf8_continuation(text[end])) end--;
  std::string shown(text.substr(begin, end - begin));
  bool utf8 = is_utf8(shown);
  for (char& c : shown) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '\t') c = ' ';
    else if (byte < 32 || byte == 127 || (byte > 127 && !utf8)) c = '?';
  }
  size_t caret = 0;
  for (size_t i = begin; i < at; i++) caret += utf8 ? !is_utf8_continuation(text[i]) : 1;
  excerpt = "\n    " + shown + "\n    " + std::string(caret, ' ') + "^";
}

[[noreturn]] static void broken(const char* what, const std::string& file, std::string_view text, size_t at,
                                const std::string& problem) {
  std::string place, excerpt;
  describe_place(text, at, place, excerpt);
  std::string where = source_tag(file);
  user_error("%s: not valid JSON at %s: %s%s%s", what, place.c_str(), problem.c_str(), where.c_str(), excerpt.c_str());
}

// nlohmann says "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing object
// key - invalid literal; last read: '{x'": users need the reason; the last token can be huge and hold any byte.
static std::string reason(std::string text) {
  text.erase(0, text.find(": ") + 2);
  if (text.starts_with("syntax error ")) text.erase(0, 13);
  return shortened(text.substr(0, text.find("; last read:")), 200);
}

namespace {

// Builds the value as it is read, and rejects what JSON allows and we do not: deep nesting and a key given twice.
// json::parse with a callback could do that too, but its time grows with the square of a list's length.
struct Builder : nlohmann::json_sax<json> {
  std::string_view text;
  const char* what;
  const std::string& file;
  json root;
  std::vector<json*> open;  // objects and lists, each within the one before
  std::string name;         // the key of the next value

  Builder(std::string_view text, const char* what, const std::string& file) : text(text), what(what), file(file) {}

  json& place(json value) {
    if (open.empty()) return root = std::move(value);
    if (open.back()->is_array()) return open.back()->emplace_back(std::move(value));
    return (*open.back())[name] = std::move(value);
  }
  bool add(json value) { return place(std::move(value)), true; }
  bool begin(json::value_t kind) {
    if (open.size() >= size_t(JSON_MAX_DEPTH))
      user_error("%s: more than %d levels of nested JSON%s", what, JSON_MAX_DEPTH, source_tag(file).c_str());
    return open.push_back(&place(kind)), true;
  }
  bool end() { return open.pop_back(), true; }

  bool start_object(size_t) override { return begin(json::value_t::object); }
  bool start_array(size_t) override { return begin(json::value_t::array); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& key) override {
    if (open.back()->contains(key))
      user_error("%s: the key %s is given twice in one object; remove one%s", what, shortened(json_quote(key)).c_str(),
                 source_tag(file).c_str());
    return name = key, true;
  }
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return true; }  // not in text
  bool parse_error(size_t at, const std::string& token, const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error))  // a number beyond double, which ends at this place
      broken(what, file, text, at - std::min(at, token.size()), "the number " + shortened(token) + " is too large");
    broken(what, file, text, at > 0 ? at - 1 : 0, reason(error.what()));
  }
};

}  // namespace

json parse_json(std::string_view text, const char* what, const std::string& file) {
  Builder builder(text, what, file);
  json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root);
}

json parsed_or_null(std::string_view text) {
  try {
    return parse_json(text, "", "");
  } catch (const UserError&) {
    return nullptr;
  }
}

void for_each_json_line(const std::string& path, const std::function<void(const std::string&, const json&)>& f) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return;
  File file = File::open_to_read(path, "JSON lines");
  std::string text, chunk(1 << 20, '\0');
  for (int64_t at = 0, size = file.size(); at < size; at += int64_t(chunk.size())) {
    chunk.resize(size_t(std::min<int64_t>(size - at, 1 << 20)));
    file.read_at(chunk.data(), chunk.size(), at);
    size_t from = 0;
    for (size_t end; (end = chunk.find('\n', from)) != std::string::npos; from = end + 1) {
      text.append(chunk, from, end + 1 - from);
      json line = parsed_or_null(text);
      f(text, line.is_object() ? line : json::object());
      text.clear();
    }
    text.append(chunk, from);
  }
}
