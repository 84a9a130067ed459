// The configuration: the first line, if there are several, is the argument of --set, the rest is the file. An accepted
// configuration must be accepted again in its resolved form, with the same values.
#include "settings/config.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  return expect_user_errors_only([&] {
    std::vector<std::string> sets;
    if (size_t end = text.find('\n'); end != std::string::npos && text[0] != '{') {
      sets.push_back(text.substr(0, end));
      text.erase(0, end + 1);
    }
    Config config = parse_config(text, "fuzz.json", sets);
    std::string resolved = config_text(config);
    if (config_text(parse_config(resolved, "resolved.json")) != resolved) std::abort();
  });
}
