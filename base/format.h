// Text from numbers, and text that a terminal may show.
#pragma once
#include <cstdarg>
#include <string>
#include <string_view>

std::string vformat(const char* fmt, va_list args);
// printf into a string, because g++ 11 and 12 lack std::format.
__attribute__((format(printf, 1, 2))) std::string format(const char* fmt, ...);

// Control characters are those that a terminal may obey: those of ASCII, and U+0080 to U+009F.
bool has_control_characters(std::string_view text);
std::string printable(std::string_view text);  // with them, but \n, as \x1b
