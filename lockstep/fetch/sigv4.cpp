#include "lockstep/fetch/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "lockstep/base/text.h"

namespace lockstep::fetch {
namespace {

using Hash = std::array<unsigned char, 32>;

std::string hex(const Hash& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * hash.size());
  for (const unsigned char byte : hash) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Hash sha256(std::string_view bytes) {
  Hash hash{};
  unsigned int size = hash.size();
  ::EVP_Digest(
      bytes.data(), bytes.size(), hash.data(), &size, ::EVP_sha256(), nullptr);
  return hash;
}

Hash hmac(std::string_view key, std::string_view text) {
  Hash hash{};
  unsigned int size = hash.size();
  ::HMAC(
      ::EVP_sha256(),
      key.data(),
      static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(text.data()),
      text.size(),
      hash.data(),
      &size);
  return hash;
}

std::string_view view(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

// Blanks at the ends dropped, runs of them made one.
std::string squeeze(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!blank) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (!out.empty() && out.back() == ' ') {
    out.pop_back();
  }
  return out;
}

// Other services than S3 sign a normal path, encoded twice.
std::string normal_path(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part == ".." && !parts.empty()) {
      parts.pop_back();
    } else if (!part.empty() && part != "." && part != "..") {
      parts.push_back(part);
    }
    at = end + 1;
  }
  std::string out;
  for (const auto part : parts) {
    out += '/';
    out += part;
  }
  if (out.empty() || (path.ends_with('/') && path.size() > 1)) {
    out += '/';
  }
  return out;
}

std::string canonical_path(const SigningInput& input) {
  if (input.service == "s3") {
    return uri_encode(input.path, true);
  }
  return uri_encode(uri_encode(normal_path(input.path), true), true);
}

struct Canonical {
  std::string text;
  std::string signed_names;  // "host;x-amz-date"
};

Canonical canonical(const SigningInput& input, const Headers& headers) {
  std::vector<std::pair<std::string, std::string>> sorted;
  for (const auto& [name, value] : headers) {
    sorted.emplace_back(lower(name), squeeze(value));
  }
  std::stable_sort(
      sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  Canonical out;
  std::string lines;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i].first == sorted[i - 1].first) {
      lines.back() = ',';  // the same header twice is one with both values
      lines += sorted[i].second + "\n";
      continue;
    }
    lines += sorted[i].first + ":" + sorted[i].second + "\n";
    out.signed_names += (i > 0 ? ";" : "") + sorted[i].first;
  }
  out.text = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}",
      input.method,
      canonical_path(input),
      encode_query(input.query),
      lines,
      out.signed_names,
      input.payload_hash);
  return out;
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size() + 16);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                       c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

std::string encode_query(const Query& query) {
  Query encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query) {
    encoded.emplace_back(uri_encode(name), uri_encode(value));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded) {
    out += (out.empty() ? "" : "&") + name + "=" + value;
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  return hex(sha256(bytes));
}

std::string amz_date(int64_t unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format(
      "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
      parts.tm_year + 1900,
      parts.tm_mon + 1,
      parts.tm_mday,
      parts.tm_hour,
      parts.tm_min,
      parts.tm_sec);
}

std::string canonical_request(
    const SigningInput& input,
    const Headers& signed_headers) {
  return canonical(input, signed_headers).text;
}

Headers sign(const SigningInput& input, const SigningKeys& keys) {
  const std::string date = amz_date(input.unix_seconds);
  const std::string day = date.substr(0, 8);
  Headers headers = input.headers;
  headers.emplace_back("Host", input.host);
  headers.emplace_back("X-Amz-Date", date);
  if (input.service == "s3") {
    headers.emplace_back("X-Amz-Content-Sha256", input.payload_hash);
  }
  if (!keys.session_token.empty()) {
    headers.emplace_back("X-Amz-Security-Token", keys.session_token.reveal());
  }
  const Canonical request = canonical(input, headers);
  const std::string scope =
      fmt::format("{}/{}/{}/aws4_request", day, input.region, input.service);
  const std::string to_sign = fmt::format(
      "AWS4-HMAC-SHA256\n{}\n{}\n{}", date, scope, sha256_hex(request.text));
  const Hash dated = hmac("AWS4" + keys.secret.reveal(), day);
  const Hash regional = hmac(view(dated), input.region);
  const Hash served = hmac(view(regional), input.service);
  const Hash key = hmac(view(served), "aws4_request");
  headers.emplace_back(
      "Authorization",
      fmt::format(
          "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
          keys.key_id,
          scope,
          request.signed_names,
          hex(hmac(view(key), to_sign))));
  return headers;
}

}  // namespace lockstep::fetch
