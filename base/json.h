// JSON helpers over nlohmann::json, which takes seconds to compile, so few .cpp files include it.
// Reading takes untrusted bytes: broken JSON, duplicate keys, invalid UTF-8 and deep nesting are each a user_error.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/text.h"

constexpr int JSON_MAX_DEPTH = 32;

// Errors begin with `what`, end with `file`, and show the line with a mark below the place:
// "config: not valid JSON at line 3, column 14: ...  [configs/x.json]".
nlohmann::json parse_json(std::string_view text, const char* what, const std::string& file);

nlohmann::json parsed_or_null(std::string_view text);  // null for what parse_json refuses

// Calls f(text, line) for every whole line of a file, with {} for one that is not a JSON object within the limits
// above; a torn last line is left out. A file that does not exist has no lines.
void for_each_json_line(const std::string& path,
                        const std::function<void(const std::string& text, const nlohmann::json& line)>& f);

std::string json_quote(std::string_view text);  // "text" in quotes, escaped; bytes that are not UTF-8 become U+FFFD
std::string json_number(double x);              // the shortest text that reads back to x; null for NaN and infinities
