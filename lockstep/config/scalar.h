#pragma once

// How each field type of a Binder reads a Node and prints itself; internal to
// config. `parse` answers false when the node is not of the type; `yaml` gives
// text that parse takes back to the same value.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/config/node.h"

namespace lockstep::config::internal {

bool parse(const Node& node, bool& value);
bool parse(const Node& node, int& value);
bool parse(const Node& node, int64_t& value);
bool parse(const Node& node, double& value);
bool parse(const Node& node, std::string& value);
bool parse(const Node& node, Duration& value);
bool parse(const Node& node, Money& value);
bool parse(const Node& node, Bytes& value);
bool parse(const Node& node, std::vector<std::string>& value);
bool parse(const Node& node, std::vector<double>& value);
bool parse(const Node& node, std::map<std::string, std::string>& value);

std::string yaml(bool value);
std::string yaml(int value);
std::string yaml(int64_t value);
std::string yaml(double value);
std::string yaml(const std::string& value);
std::string yaml(Duration value);
std::string yaml(Money value);
std::string yaml(Bytes value);
std::string yaml(const std::vector<std::string>& value);
std::string yaml(const std::vector<double>& value);
std::string yaml(const std::map<std::string, std::string>& value);

}  // namespace lockstep::config::internal
