// Numbers and lists as text that people read.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"

std::string duration_text(double seconds);  // 43s, 12m05s, 1h34m, 2d03h
std::string count_text(double count);       // 999, 52.4K, 1.76M, 10.0G
std::string bytes_text(double bytes);       // 512 B, 1.2 GiB
// The bytes of "80GiB" or "1.5 TiB" (KiB to PiB); 0 if the text is not such a size.
double size_in_bytes(const std::string& text);
// A cell of a table: the number in this printf format, as "%8.3f", or "-" in the same width for NaN.
std::string cell_text(const char* form, double x);
std::string plural(double count, const std::string& noun);  // "token" of 1, else "tokens"

void append_item(std::string& list, std::string_view item, std::string_view separator = ", ");  // "a, b" from "a"
// Each item after `before`, at most `most` of them, and how many more there are: "\n  a\n  b\n  and 3 more".
std::string listed(const std::vector<std::string>& items, size_t most, const std::string& before = "\n  ");
std::vector<std::string> split(const std::string& list, char separator);  // {"a", ""} from "a,"; {""} from ""
// "  [configs/x.json]", which ends an error text; "" without a file.
std::string source_tag(const std::string& file);
// The first `bytes` bytes of the text, then "..."; the cut is between characters. For quoting user input in errors.
std::string shortened(std::string text, size_t bytes = 80);
std::string shell_quoted(const std::string& text);  // as one word of a command that a person may copy into a shell
