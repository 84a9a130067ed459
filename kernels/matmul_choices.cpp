#include "kernels/matmul_choices.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/text.h"

static std::string today() {  // UTC
  char text[sizeof "2026-11-21"];
  std::time_t now = std::time(nullptr);
  std::tm parts;
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", gmtime_r(&now, &parts))};
}

static bool is_date(const std::string& text) {
  return text.size() == 10 && text[4] == '-' && text[7] == '-' &&
         text.find_first_not_of("0123456789-") == std::string::npos;
}

const std::string* MatmulChoices::find(const std::string& shape) const {
  auto found = choices_.find(device_ + shape);
  return found == choices_.end() ? nullptr : &found->second.algorithm;
}

std::string MatmulChoices::line_of(const std::string& key, const Choice& choice) {
  return key + '\t' + choice.algorithm + '\t' + choice.date + '\n';
}

void MatmulChoices::choose(const std::string& shape, const std::string& algorithm, bool measured) {
  Choice choice{algorithm, today()};
  choices_.insert_or_assign(device_ + shape, choice);
  if (measured) append(line_of(device_ + shape, choice));
}

void MatmulChoices::append(const std::string& line) const {
  if (path_.empty()) return;
  int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return;
  // One write of a whole line at the end of the file: several runs may do so at once.
  [[maybe_unused]] ssize_t written = write(file, line.data(), line.size());
  close(file);
}

std::string MatmulChoices::text() const {
  std::string text;
  for (auto& [key, choice] : choices_) text += line_of(key, choice);
  return text;
}

MatmulChoices::Taken MatmulChoices::take(std::istream& lines) {
  std::map<std::string, Choice> found;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields = split(line, '\t');
    if (fields.size() != 5 || !is_date(fields[4])) continue;
    found.insert_or_assign(fields[0] + '\t' + fields[1] + '\t' + fields[2], Choice{fields[3], fields[4]});
  }
  Taken taken;
  for (auto& [key, choice] : found) {
    choices_.insert_or_assign(key, choice);
    if (key.rfind(device_, 0) != 0) continue;
    if (taken.count++ == 0 || choice.date < taken.oldest) taken.oldest = choice.date;
  }
  version_++;
  return taken;
}

MatmulChoices::Taken MatmulChoices::take(const std::string& text) {
  std::istringstream lines(text);
  return take(lines);
}

MatmulChoices::Taken MatmulChoices::use_file(const std::string& path, bool read) {
  std::error_code ignored;
  auto type = std::filesystem::status(path, ignored).type();
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found) return {};
  path_ = path;
  std::ifstream file(path);
  Taken taken = read && file ? take(file) : Taken{};
  file.clear();
  if (file.seekg(-1, std::ios::end) && file.get() != '\n') append("\n");  // a line was cut short: the next begins anew
  return taken;
}
