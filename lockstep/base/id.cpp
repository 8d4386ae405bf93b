#include "lockstep/base/id.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cctype>
#include <ctime>

#include "lockstep/base/check.h"

namespace lockstep {
namespace {

void fill_random(void* data, size_t size) {
  const ssize_t got = getrandom(data, size, 0);
  LOCKSTEP_CHECK_EQ(got, static_cast<ssize_t>(size));
}

int digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return -1;
}

}  // namespace

std::string file_name_of(std::string_view name) {
  std::string clean;
  for (char c : name.substr(0, 40)) {
    const auto lower = static_cast<char>(std::tolower((unsigned char)c));
    const bool kept = (lower >= 'a' && lower <= 'z') ||
                      (lower >= '0' && lower <= '9') || lower == '_' ||
                      lower == '-';
    clean += kept ? lower : '-';
  }
  if (clean.empty() || clean.front() == '-') {
    clean = "run" + clean;
  }
  return clean;
}

std::string make_run_id(std::string_view name, int64_t unix_seconds) {
  const std::string clean = file_name_of(name);
  const std::time_t time = unix_seconds;
  std::tm utc{};
  gmtime_r(&time, &utc);
  uint32_t random = 0;
  fill_random(&random, sizeof random);
  std::string suffix;
  for (int i = 0; i < 6; ++i) {
    suffix += "abcdefghijklmnopqrstuvwxyz234567"[random >> (5 * i) & 31];
  }
  return fmt::format(
      "{}-{:04}{:02}{:02}-{:02}{:02}{:02}-{}",
      clean,
      utc.tm_year + 1900,
      utc.tm_mon + 1,
      utc.tm_mday,
      utc.tm_hour,
      utc.tm_min,
      utc.tm_sec,
      suffix);
}

Key make_key() {
  Key key{};
  fill_random(key.data(), key.size());
  return key;
}

std::string to_hex(const Key& key) {
  std::string text;
  for (uint8_t byte : key) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

bool from_hex(std::string_view text, Key& key) {
  if (text.size() != 2 * key.size()) {
    return false;
  }
  for (size_t i = 0; i < key.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    key[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace lockstep
