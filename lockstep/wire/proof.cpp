#include "lockstep/wire/proof.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>

namespace lockstep::wire {

Proof Talk::prove(std::string_view role) const {
  std::string text =
      fmt::format("lockstep 1 {} {}", role, purpose) + std::string(1, '\0');
  text.append(client.begin(), client.end());
  text.append(server.begin(), server.end());
  Proof proof{};
  unsigned int size = proof.size();
  ::HMAC(
      ::EVP_sha256(),
      key->data(),
      static_cast<int>(key->size()),
      reinterpret_cast<const unsigned char*>(text.data()),
      text.size(),
      proof.data(),
      &size);
  return proof;
}

bool equal(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::wire
