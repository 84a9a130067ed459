#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"

std::vector<std::string> split(const std::string& list, char separator) {
  std::vector<std::string> parts;
  for (size_t from = 0, to; from <= list.size(); from = to + 1)
    parts.push_back(list.substr(from, (to = std::min(list.find(separator, from), list.size())) - from));
  return parts;
}

std::string shell_quoted(const std::string& text) {
  auto plain = [](unsigned char c) { return std::isalnum(c) || c >= 0x80 || std::strchr("_@%+=:,./-", c); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string source_tag(const std::string& file) { return file.empty() ? "" : format("  [%s]", file.c_str()); }

std::string shortened(std::string text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && is_utf8_continuation(text[bytes])) bytes--;
  return text.substr(0, bytes) + "...";
}

void append_item(std::string& list, std::string_view item, std::string_view separator) {
  if (!list.empty()) list += separator;
  list += item;
}

std::string listed(const std::vector<std::string>& items, size_t most, const std::string& before) {
  std::string list;
  for (size_t i = 0; i < items.size() && i < most; i++) list += before + items[i];
  return items.size() > most ? list + before + format("and %zu more", items.size() - most) : list;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  auto s = int64_t(std::llround(seconds));
  if (s < 60) return format("%lds", s);
  if (s < 3600) return format("%ldm%02lds", s / 60, s % 60);
  if (s < 86400) return format("%ldh%02ldm", s / 3600, s / 60 % 60);
  return format("%ldd%02ldh", s / 86400, s / 3600 % 24);
}

std::string count_text(double count) {
  const char* units[] = {"", "K", "M", "G", "T", "P"};
  if (!std::isfinite(count)) return "?";
  size_t unit = 0;
  for (; unit < 5 && std::fabs(count) >= 999.5; unit++) count /= 1000;  // 999.5 would be printed with four digits
  if (unit == 0) return format("%.0f", count);
  double size = std::fabs(count);
  return format("%.*f%s", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, count, units[unit]);
}

std::string cell_text(const char* form, double x) {
  return std::isnan(x) ? format("%*s", std::atoi(form + 1), "-") : format(form, x);
}

std::string plural(double count, const std::string& noun) { return noun + (count == 1 ? "" : "s"); }

static const char* const BYTE_UNITS[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};

std::string bytes_text(double bytes) {
  if (bytes < 1024) return format("%.0f B", bytes);
  size_t unit = 0;
  for (bytes /= 1024; unit < 4 && bytes >= 1023.95; unit++) bytes /= 1024;
  return format("%.1f %s", bytes, BYTE_UNITS[unit]);
}

double size_in_bytes(const std::string& text) {
  size_t digits = text.find_first_not_of("0123456789."), unit = text.find_first_not_of(" ", digits);
  if (digits == 0 || unit >= text.size() || std::count(text.begin(), text.end(), '.') > 1) return 0;
  double bytes = std::strtod(text.c_str(), nullptr);
  for (const char* name : BYTE_UNITS) {
    bytes *= 1024;
    if (text.substr(unit) == name) return bytes;
  }
  return 0;
}
