#pragma once

// One call of EC2's query API: parameters by their names in the API, an XML
// answer, errors with their class. Internal to cloud/ec2.

#include <functional>
#include <string>
#include <vector>

#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/machine.h"
#include "lockstep/fetch/aws_request.h"

namespace lockstep::cloud::ec2 {

class Call {
 public:
  explicit Call(const std::string& action, std::string subject = "");
  Call& add(const std::string& name, const std::string& value);
  // name.1, name.2, ...
  Call& add_list(
      const std::string& name,
      const std::vector<std::string>& values);
  // Filter.N.Name and its values, N counting up.
  Call& filter(const std::string& name, const std::vector<std::string>& values);
  // Filters for tags; an empty value stands for any.
  Call& filter_tags(const Tags& tags);
  // TagSpecification.N for a type of resource.
  Call& tag(const std::string& resource_type, const Tags& tags);
  // Codes that mean "not yet" here.
  Call& wait_for(std::vector<std::string> codes);
  const std::string& action() const { return action_; }
  fetch::AwsRequest request(const std::string& region) const;

 private:
  std::string action_, subject_;
  fetch::Query parameters_;
  std::vector<std::string> not_yet_;
  int num_filters_ = 0, num_tags_ = 0;
};

// The answer's root, or an error with its class.
struct Reply {
  fetch::XmlDocument document;
  pugi::xml_node root;
};
// `fault`: also the refusal as it came, for callers that know its code.
Result<Reply> send(
    fetch::AwsClient& client,
    const std::string& region,
    const Call& call,
    fetch::AwsFault* fault = nullptr);
// JSON in and out, of SSM, Service Quotas and Pricing.
Result<std::string> send_json(
    fetch::AwsClient& client,
    const std::string& region,
    const std::string& service,
    const std::string& target,
    const std::string& body);

// Every item below `list` ("reservationSet") of every page. `page` is how many
// to ask for; 0: the call has no pages.
Result<void> each_item(
    fetch::AwsClient& client,
    const std::string& region,
    Call call,
    const char* list,
    int page,
    const std::function<Result<void>(const pugi::xml_node&)>& item);

// The class of a refusal, with the cloud's words and what to do next.
Error refusal(
    const fetch::AwsFault& fault,
    const std::string& action,
    const std::string& subject);
// An error of the request layer (no answer, no credentials) with its class.
Error classed(Error error);

// "2026-11-15T08:30:12.000Z" in Unix seconds; 0 for what is no time.
double parse_time(const std::string& text);

}  // namespace lockstep::cloud::ec2
