#pragma once

// Prices by AWS itself: on demand from the price list service, spot from the
// history of the last hours, each zone's newest. For Linux on shared hardware.

#include <string>
#include <vector>

#include "lockstep/cloud/prices.h"
#include "lockstep/fetch/aws_request.h"

namespace lockstep::cloud::ec2 {

class ApiPrices : public PriceList {
 public:
  // Not owned.
  explicit ApiPrices(
      fetch::AwsClient& client,
      os::Clock& clock = os::real_clock())
      : client_(client), clock_(clock) {}
  // An unknown type is empty, as is one that the region does not have. When
  // one of the two services refuses, the other's prices come back and the
  // error is in problems(); it is not asked again.
  Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region) override;
  std::vector<Error> problems() const override { return problems_; }

 private:
  fetch::AwsClient& client_;
  os::Clock& clock_;
  std::vector<Error> problems_;
  bool ask_list_ = true, ask_spot_ = true;
};

// The hourly price of one entry of GetProducts' PriceList; none: it has no
// hourly on-demand term.
Result<std::optional<Money>> read_product(const std::string& json);

}  // namespace lockstep::cloud::ec2
