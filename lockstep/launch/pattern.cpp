#include "lockstep/launch/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <cstdlib>

namespace lockstep::launch {

struct Pattern::State {
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  std::vector<std::pair<std::string, uint32_t>> groups;
  ~State() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE place = 0;
  auto state = std::make_unique<State>();
  state->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(expression.data()),
      expression.size(),
      0,
      &error,
      &place,
      nullptr);
  if (state->code == nullptr) {
    char text[256];
    pcre2_get_error_message(
        error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}': {} at character {}", expression, text, place + 1));
  }
  state->data = pcre2_match_data_create_from_pattern(state->code, nullptr);
  state->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(state->context, 100000);
  uint32_t count = 0;
  uint32_t size = 0;
  PCRE2_SPTR table = nullptr;
  pcre2_pattern_info(state->code, PCRE2_INFO_NAMECOUNT, &count);
  pcre2_pattern_info(state->code, PCRE2_INFO_NAMEENTRYSIZE, &size);
  pcre2_pattern_info(state->code, PCRE2_INFO_NAMETABLE, &table);
  for (uint32_t i = 0; i < count; ++i) {
    // Two bytes of group number, then the name.
    const PCRE2_SPTR entry = table + static_cast<size_t>(i) * size;
    state->groups.emplace_back(
        reinterpret_cast<const char*>(entry + 2),
        static_cast<uint32_t>(entry[0]) << 8 | entry[1]);
  }
  if (state->groups.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}' names no group: write (?<step>\\d+) around the number",
            expression));
  }
  return Pattern(std::move(state));
}

bool Pattern::match(
    std::string_view line,
    std::map<std::string, double>& numbers) {
  numbers.clear();
  if (pcre2_match(
          state_->code,
          reinterpret_cast<PCRE2_SPTR>(line.data()),
          line.size(),
          0,
          0,
          state_->data,
          state_->context) < 0) {
    return false;
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->data);
  for (const auto& [name, number] : state_->groups) {
    const PCRE2_SIZE start = range[2 * number];
    const PCRE2_SIZE end = range[2 * number + 1];
    if (start == PCRE2_UNSET || end <= start) {
      continue;
    }
    const std::string text(line.substr(start, end - start));
    char* rest = nullptr;
    const double value = std::strtod(text.c_str(), &rest);
    if (rest != text.c_str()) {
      numbers[name] = value;
    }
  }
  return true;
}

}  // namespace lockstep::launch
