#pragma once

// Under torchrun MASTER_PORT is taken by torchrun's own TCPStore; ranks then
// find each other through that store.

#include <memory>
#include <string>

#include "lockstep/wire/rendezvous.h"

namespace lockstep::parallel {

// Throws std::runtime_error when nobody serves a store there in time.
std::unique_ptr<wire::Rendezvous> connect_torch_store(
    const std::string& host,
    uint16_t port,
    const std::string& prefix,
    Duration timeout);

}  // namespace lockstep::parallel
