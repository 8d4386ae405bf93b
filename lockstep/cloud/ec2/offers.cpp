// Types of EC2 and how many of them the account may have.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/nearest.h"
#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/cloud/prices.h"

namespace lockstep::cloud::ec2 {
namespace {

using nlohmann::json;

// What one call takes at most.
constexpr size_t kMostTypes = 100;

// "g4dn.xlarge" counts against the limit of the "g" types.
std::string family_letters(const std::string& type) {
  return type.substr(0, type.find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
}

struct QuotaClass {
  std::vector<std::string> families;
  const char* on_demand;
  const char* spot;
};

const QuotaClass* quota_class(const std::string& type) {
  static const std::vector<QuotaClass> kClasses = {
      {{"a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"},
       "L-1216C47A",
       "L-34B43A08"},
      {{"g", "gr", "vt"}, "L-DB2E81BA", "L-3819A6DF"},
      {{"p"}, "L-417A185B", "L-7212CCBC"},
      {{"dl"}, "L-6E869C2A", "L-85EED4F7"},
  };
  const std::string letters = family_letters(type);
  for (const QuotaClass& one : kClasses) {
    if (std::ranges::count(one.families, letters) > 0) {
      return &one;
    }
  }
  return nullptr;
}

}  // namespace

Result<std::vector<std::string>> Ec2::type_names() {
  std::vector<std::string> names;
  Call call("DescribeInstanceTypeOfferings");
  call.add("LocationType", "region");
  LOCKSTEP_TRY(each_item(
      *options_.client,
      options_.region,
      call,
      "instanceTypeOfferingSet",
      options_.page,
      [&](const pugi::xml_node& item) -> Result<void> {
        names.push_back(fetch::xml_text(item, "instanceType"));
        return {};
      }));
  std::ranges::sort(names);
  return names;
}

Result<std::vector<Offer>> Ec2::describe_types(
    const std::vector<std::string>& types) {
  std::vector<Offer> offers;
  const auto read = [&](const pugi::xml_node& item) -> Result<void> {
    offers.push_back(read_offer(item));
    return {};
  };
  if (types.empty()) {
    LOCKSTEP_TRY(each_item(
        *options_.client,
        options_.region,
        Call("DescribeInstanceTypes"),
        "instanceTypeSet",
        static_cast<int>(kMostTypes),
        read));
    return offers;
  }
  for (size_t at = 0; at < types.size(); at += kMostTypes) {
    const size_t end = std::min(types.size(), at + kMostTypes);
    Call call("DescribeInstanceTypes");
    call.add_list(
        "InstanceType",
        {types.begin() + static_cast<ptrdiff_t>(at),
         types.begin() + static_cast<ptrdiff_t>(end)});
    LOCKSTEP_TRY(each_item(
        *options_.client, options_.region, call, "instanceTypeSet", 0, read));
  }
  return offers;
}

Result<std::vector<Offer>> Ec2::offers(const std::vector<std::string>& types) {
  auto described = describe_types(types);
  const auto known = [&](const std::string& type) {
    return described && std::ranges::find(*described, type, &Offer::type) !=
                            described->end();
  };
  if (!described && failure_of(described.error()) != Failure::kBadRequest) {
    return described;
  }
  // Asked after the fact: the list of all types takes some pages.
  std::vector<std::string> names;
  for (const std::string& type : types) {
    if (known(type)) {
      continue;
    }
    if (names.empty()) {
      LOCKSTEP_ASSIGN(names, type_names());
    }
    if (std::ranges::binary_search(names, type)) {
      continue;
    }
    const auto shipped = PriceTable::shipped().types();
    if (std::ranges::count(shipped, type) > 0) {
      return cloud_error(
                 Failure::kBadRequest,
                 fmt::format("{} has no {}", options_.region, type))
          .with_fix("name another region or type");
    }
    return cloud_error(
        Failure::kBadRequest,
        fmt::format(
            "{} has no type '{}'; {}",
            options_.region,
            type,
            suggest(type, names)));
  }
  if (!described) {
    return described;
  }
  std::map<std::string, Offer*> by_type;
  for (Offer& offer : *described) {
    by_type[offer.type] = &offer;
  }
  Call call("DescribeInstanceTypeOfferings");
  call.add("LocationType", "availability-zone");
  if (!types.empty()) {
    call.filter("instance-type", types);
  }
  LOCKSTEP_TRY(each_item(
      *options_.client,
      options_.region,
      call,
      "instanceTypeOfferingSet",
      options_.page,
      [&](const pugi::xml_node& item) -> Result<void> {
        const auto found = by_type.find(fetch::xml_text(item, "instanceType"));
        if (found != by_type.end()) {
          found->second->zones.push_back(fetch::xml_text(item, "location"));
        }
        return {};
      }));
  for (Offer& offer : *described) {
    std::ranges::sort(offer.zones);
  }
  return described;
}

Result<Quota> Ec2::quota(const Offer& offer, Market market) {
  const QuotaClass* group = quota_class(offer.type);
  if (group == nullptr) {
    return cloud_error(
        Failure::kNotFound,
        fmt::format("no quota is known for types like {}", offer.type));
  }
  const std::string code =
      market == Market::kSpot ? group->spot : group->on_demand;
  const std::string body =
      json({{"ServiceCode", "ec2"}, {"QuotaCode", code}}).dump();
  const auto ask = [&](const std::string& action) {
    return send_json(
        *options_.client,
        options_.region,
        "servicequotas",
        "ServiceQuotasV20190624." + action,
        body);
  };
  auto answer = ask("GetServiceQuota");
  // An account that never changed it has only the default.
  if (!answer && failure_of(answer.error()) == Failure::kNotFound) {
    answer = ask("GetAWSDefaultServiceQuota");
  }
  if (!answer) {
    return Error(std::move(answer.error()));
  }
  const json told = json::parse(*answer, nullptr, false);
  if (!told.is_object() || !told.contains("Quota") ||
      !told["Quota"].is_object() || !told["Quota"]["Value"].is_number()) {
    return cloud_error(
        Failure::kTransient,
        fmt::format("servicequotas: quota {} has no value", code));
  }
  Quota quota;
  quota.unit = "vCPUs";
  quota.limit = told["Quota"]["Value"].get<double>();
  quota.name = told["Quota"].value("QuotaName", code);
  Call call("DescribeInstances");
  call.filter("instance-state-name", {"pending", "running"});
  LOCKSTEP_TRY(each_item(
      *options_.client,
      options_.region,
      call,
      "reservationSet",
      options_.page,
      [&](const pugi::xml_node& reservation) -> Result<void> {
        for (const pugi::xml_node& item :
             reservation.child("instancesSet").children("item")) {
          const Instance one = read_instance(item);
          if (quota_class(one.type) == group && one.market == market) {
            quota.used += read_cpus(item);
          }
        }
        return {};
      }));
  return quota;
}

}  // namespace lockstep::cloud::ec2
