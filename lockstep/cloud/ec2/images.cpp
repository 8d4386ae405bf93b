// Which image a machine of EC2 starts with.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/ec2.h"

namespace lockstep::cloud::ec2 {
namespace {

using nlohmann::json;

// A system whose libc is at least as new as the one lockstep is built with.
struct ImageSource {
  std::string parameter;  // public, of the Systems Manager
  std::string owner;
  std::string name;  // with a star
};

ImageSource source_of(const ImageWish& wish) {
  const bool is_arm = wish.architecture == "arm64";
  if (wish.gpu) {
    return {
        fmt::format(
            "/aws/service/deeplearning/ami/{}/"
            "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
            is_arm ? "arm64" : "x86_64"),
        "amazon",
        fmt::format(
            "Deep Learning {}Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *",
            is_arm ? "ARM64 " : "")};
  }
  return {
      fmt::format(
          "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/"
          "ebs-gp3/ami-id",
          is_arm ? "arm64" : "amd64"),
      "099720109477",  // Canonical
      fmt::format(
          "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{}-server-*",
          is_arm ? "arm64" : "amd64")};
}

}  // namespace

Result<Image> Ec2::describe_image(const std::string& id) {
  Call call("DescribeImages", id);
  call.add_list("ImageId", {id});
  LOCKSTEP_ASSIGN(
      const Reply reply, send(*options_.client, options_.region, call));
  const pugi::xml_node item = reply.root.child("imagesSet").child("item");
  if (!item) {
    return cloud_error(
               Failure::kNotFound,
               fmt::format("image {} in {}", id, options_.region))
        .with_fix("images belong to one region: name one of this region");
  }
  return read_image(item);
}

Result<std::string> Ec2::newest_image(const ImageWish& wish) {
  const ImageSource source = source_of(wish);
  const auto answer = send_json(
      *options_.client,
      options_.region,
      "ssm",
      "AmazonSSM.GetParameter",
      json({{"Name", source.parameter}}).dump());
  if (answer) {
    const json told = json::parse(*answer, nullptr, false);
    if (told.is_object() && told.contains("Parameter") &&
        told["Parameter"].is_object()) {
      const std::string id = told["Parameter"].value("Value", "");
      if (id.starts_with("ami-")) {
        return id;
      }
    }
  } else if (failure_of(answer.error()) == Failure::kCredentials) {
    return Error(answer.error());
  }
  // Not allowed, or not there: by owner and name.
  Call call("DescribeImages", source.name);
  call.add_list("Owner", {source.owner})
      .filter("name", {source.name})
      .filter("state", {"available"})
      .filter("architecture", {wish.architecture});
  std::string newest, id;
  LOCKSTEP_TRY(each_item(
      *options_.client,
      options_.region,
      call,
      "imagesSet",
      0,
      [&](const pugi::xml_node& item) -> Result<void> {
        const std::string date = fetch::xml_text(item, "creationDate");
        if (id.empty() || date > newest) {
          newest = date;
          id = fetch::xml_text(item, "imageId");
        }
        return {};
      }));
  if (id.empty()) {
    return cloud_error(
               Failure::kNotFound,
               fmt::format(
                   "no image '{}' ({}) in {}",
                   source.name,
                   wish.architecture,
                   options_.region))
        .with_fix("name one with image_id");
  }
  return id;
}

Result<Image> Ec2::image(const ImageWish& wish) {
  std::string id = wish.id;
  if (id.empty()) {
    LOCKSTEP_ASSIGN(id, newest_image(wish));
  }
  LOCKSTEP_ASSIGN(Image image, describe_image(id));
  if (!wish.architecture.empty() && image.architecture != wish.architecture) {
    return cloud_error(
               Failure::kBadRequest,
               fmt::format(
                   "image {} ({}) is for {}, the type is {}",
                   id,
                   image.name,
                   image.architecture,
                   wish.architecture))
        .with_fix("name an image of that architecture, or leave image_id out");
  }
  return image;
}

}  // namespace lockstep::cloud::ec2
