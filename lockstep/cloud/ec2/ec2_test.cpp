#include "lockstep/cloud/ec2/ec2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/cloud/ec2/answers.h"
#include "lockstep/cloud/ec2/base64.h"
#include "lockstep/cloud/ec2/calls.h"
#include "lockstep/cloud/ec2/fake_cloud_test.h"
#include "lockstep/cloud/ec2/spot_notices.h"
#include "lockstep/cloud/failure.h"

namespace lockstep::cloud::ec2 {
namespace {

using Said = std::pair<int, std::string>;

std::string machine(const std::string& id, const std::string& state) {
  return "<item><instanceId>" + id +
         "</instanceId><instanceState><code>0"
         "</code><name>" +
         state +
         "</name></instanceState>"
         "<instanceType>g4dn.xlarge</instanceType>"
         "<launchTime>2026-11-15T08:30:12.500Z</launchTime><placement>"
         "<availabilityZone>us-west-2b</availabilityZone></placement>"
         "<privateIpAddress>10.99.0.11</privateIpAddress>"
         "<ipAddress>203.0.113.9</ipAddress>"
         "<instanceLifecycle>spot</instanceLifecycle>"
         "<spotInstanceRequestId>sir-1</spotInstanceRequestId>"
         "<clientToken>tok</clientToken>"
         "<cpuOptions><coreCount>2</coreCount><threadsPerCore>2"
         "</threadsPerCore></cpuOptions><tagSet><item><key>lockstep:cluster"
         "</key><value>a &amp; b</value></item></tagSet></item>";
}

std::string described(const std::string& items, const std::string& next = "") {
  return "<DescribeInstancesResponse><reservationSet><item><instancesSet>" +
         items + "</instancesSet></item></reservationSet>" +
         (next.empty() ? "" : "<nextToken>" + next + "</nextToken>") +
         "</DescribeInstancesResponse>";
}

std::string ran(const std::string& items) {
  return "<RunInstancesResponse><instancesSet>" + items +
         "</instancesSet></RunInstancesResponse>";
}

Ec2 ec2_of(FakeCloud& cloud) {
  return Ec2(
      {.client = cloud.client.get(),
       .region = "us-west-2",
       .page = 2,
       .clock = &cloud.clock});
}

Offer offer(const std::string& type) {
  Offer one;
  one.type = type;
  return one;
}

LaunchOrder order() {
  LaunchOrder one;
  one.token = "tok";
  one.type = "g4dn.xlarge";
  one.image = "ami-1";
  one.tags = {{std::string(kClusterTag), "c"}};
  return one;
}

TEST(Ec2, LaunchSaysEverythingThatWasOrdered) {
  FakeCloud cloud([](const FakeCall& call) -> Said {
    return {
        200,
        call.action == "RunInstances" ? ran(machine("i-1", "pending"))
                                      : described(machine("i-1", "running"))};
  });
  LaunchOrder one = order();
  one.market = Market::kSpot;
  one.bid = Money::from_dollars(0.25);
  one.zone = "us-west-2b";
  one.disk = Bytes{(uint64_t{100} << 30) + 1};
  one.root_device = "/dev/sda1";
  one.key_pair = "k";
  one.security_groups = {"sg-1", "sg-2"};
  one.subnet = "subnet-1";
  one.placement_group = "pg";
  one.instance_profile = "head";
  one.user_data = "#!/bin/sh\n";
  Ec2 ec2 = ec2_of(cloud);
  const auto launched = ec2.launch(one);
  ASSERT_TRUE(launched) << launched.error().to_string();
  EXPECT_EQ(launched->front().state, InstanceState::kRunning);
  Parameters said = cloud.calls[0].parameters;
  EXPECT_EQ(said["ClientToken"], "tok");
  EXPECT_EQ(said["MinCount"] + said["MaxCount"], "11");
  EXPECT_EQ(said["InstanceInitiatedShutdownBehavior"], "terminate");
  EXPECT_EQ(said["MetadataOptions.HttpTokens"], "required");
  EXPECT_EQ(said["InstanceMarketOptions.MarketType"], "spot");
  EXPECT_EQ(said["InstanceMarketOptions.SpotOptions.MaxPrice"], "0.250000");
  EXPECT_EQ(said["BlockDeviceMapping.1.Ebs.VolumeSize"], "101");
  EXPECT_EQ(said["SecurityGroupId.2"], "sg-2");
  EXPECT_EQ(said["Placement.AvailabilityZone"], "us-west-2b");
  EXPECT_EQ(said["Placement.GroupName"], "pg");
  EXPECT_EQ(said["IamInstanceProfile.Name"], "head");
  EXPECT_EQ(said["UserData"], base64("#!/bin/sh\n"));
  EXPECT_EQ(said["TagSpecification.2.ResourceType"], "volume");
  EXPECT_EQ(said["TagSpecification.3.ResourceType"], "spot-instances-request");
  EXPECT_EQ(said["TagSpecification.1.Tag.1.Value"], "c");
}

TEST(Ec2, WhatWasJustLaunchedIsWaitedFor) {
  int looks = 0;
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "RunInstances") {
      return {200, ran(machine("i-1", "pending"))};
    }
    return ++looks < 3 ? refused(400, "InvalidInstanceID.NotFound", "not yet")
                       : Said{200, described(machine("i-1", "running"))};
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_EQ(ec2.launch(order())->front().state, InstanceState::kRunning);
  EXPECT_EQ(looks, 3);
}

TEST(Ec2, ALookThatFailsIsNoFailedLaunch) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    return call.action == "RunInstances"
               ? Said{200, ran(machine("i-1", "pending"))}
               : refused(403, "UnauthorizedOperation", "no");
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto launched = ec2.launch(order());
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->front().id, "i-1");
  EXPECT_EQ(launched->front().state, InstanceState::kPending);
}

TEST(Ec2, RefusalsHaveTheirClassAndTheCloudsWords) {
  const std::vector<std::tuple<int, std::string, Failure>> cases = {
      {500, "InsufficientInstanceCapacity", Failure::kCapacity},
      {400, "InsufficientFreeAddressesInSubnet", Failure::kCapacity},
      {400, "SpotMaxPriceTooLow", Failure::kCapacity},
      {400, "VcpuLimitExceeded", Failure::kQuota},
      {400, "InstanceLimitExceeded", Failure::kQuota},
      {400, "MaxSpotInstanceCountExceeded", Failure::kQuota},
      {401, "AuthFailure", Failure::kCredentials},
      {403, "SignatureDoesNotMatch", Failure::kCredentials},
      {403, "UnauthorizedOperation", Failure::kPermission},
      {503, "RequestLimitExceeded", Failure::kThrottled},
      {400, "InvalidAMIID.NotFound", Failure::kNotFound},
      {400, "InvalidParameterValue", Failure::kBadRequest},
      {400, "IdempotentParameterMismatch", Failure::kBadRequest},
      {500, "InternalError", Failure::kTransient},
      {400, "DependencyViolation", Failure::kTransient},
  };
  for (const auto& [status, code, failure] : cases) {
    FakeCloud cloud([&](const FakeCall&) {
      return refused(status, code, "in the cloud's words");
    });
    Ec2 ec2 = ec2_of(cloud);
    const auto launched = ec2.launch(order());
    ASSERT_FALSE(launched);
    const std::string text = launched.error().to_string();
    EXPECT_EQ(failure_of(launched.error()), failure) << text;
    EXPECT_NE(text.find("in the cloud's words"), std::string::npos) << text;
    EXPECT_NE(text.find("ec2:RunInstances"), std::string::npos) << text;
  }
}

TEST(Ec2, ATypeThatAZoneLacksIsAShortage) {
  FakeCloud cloud([&](const FakeCall&) {
    return refused(
        400,
        "Unsupported",
        "Your requested instance type (p3.2xlarge) is not supported in your "
        "requested Availability Zone (us-west-2d).");
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_TRUE(is_shortage(ec2.launch(order()).error()));
}

TEST(Ec2, BadOrdersAreNotSent) {
  FakeCloud cloud([&](const FakeCall&) { return Said{200, "<x/>"}; });
  Ec2 ec2 = ec2_of(cloud);
  LaunchOrder no_token = order(), no_tag = order(), much = order();
  no_token.token.clear();
  no_tag.tags.clear();
  much.user_data = std::string(20000, 'x');
  for (const LaunchOrder& one : {no_token, no_tag, much}) {
    EXPECT_EQ(failure_of(ec2.launch(one).error()), Failure::kBadRequest);
  }
  EXPECT_TRUE(cloud.calls.empty());
}

TEST(Ec2, PagesAreFollowedAndAnswersRead) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    Parameters said = call.parameters;
    EXPECT_EQ(said["MaxResults"], "2");
    EXPECT_EQ(said["Filter.1.Name"], "tag-key");
    EXPECT_EQ(said["Filter.1.Value.1"], "lockstep:cluster");
    const std::string token = said["NextToken"];
    return {
        200,
        token.empty()
            ? described(
                  machine("i-1", "running") + machine("i-2", "terminated"),
                  "next+/=")
            : described(machine(
                  token == "next+/=" ? "i-3" : "i-?", "shutting-down"))};
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto found =
      ec2.instances({.tags = {{std::string(kClusterTag), ""}}, .ids = {}});
  ASSERT_TRUE(found) << found.error().to_string();
  ASSERT_EQ(found->size(), 3U);
  const Instance& one = (*found)[0];
  EXPECT_EQ(one.private_address, "10.99.0.11");
  EXPECT_EQ(one.public_address, "203.0.113.9");
  EXPECT_EQ(one.market, Market::kSpot);
  EXPECT_EQ(one.launched, 1794731412.5);
  EXPECT_EQ(one.tags.at("lockstep:cluster"), "a & b");
  EXPECT_TRUE(one.is_live());
  EXPECT_EQ((*found)[1].state, InstanceState::kGone);
  EXPECT_EQ((*found)[2].id, "i-3");
  EXPECT_FALSE((*found)[2].is_live());
}

TEST(Ec2, TheReasonOfAnEndHasItsTime) {
  std::string item = machine("i-1", "terminated");
  const std::string end = "</item>";
  item.insert(
      item.size() - end.size(),
      "<reason>User initiated (2026-11-15 18:00:00 GMT)</reason><stateReason>"
      "<code>Client.InstanceInitiatedShutdown</code><message>Client."
      "InstanceInitiatedShutdown: Instance initiated shutdown</message>"
      "</stateReason>");
  FakeCloud cloud(
      [&](const FakeCall&) -> Said { return {200, described(item)}; });
  Ec2 ec2 = ec2_of(cloud);
  const auto found = ec2.instances({});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(
      found->front().reason,
      "Client.InstanceInitiatedShutdown: Instance initiated shutdown "
      "(2026-11-15 18:00:00 GMT)");
}

TEST(Ec2, PagesThatDoNotEndAreAnError) {
  FakeCloud cloud([&](const FakeCall&) -> Said {
    return {200, described(machine("i-1", "running"), "same")};
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_EQ(failure_of(ec2.instances({}).error()), Failure::kTransient);
}

TEST(Ec2, ACutAnswerIsNotHalfAnAnswer) {
  int asked = 0;
  FakeCloud cloud([&](const FakeCall&) -> Said {
    const std::string whole = described(machine("i-1", "running"));
    return {200, ++asked == 1 ? whole.substr(0, whole.size() / 2) : whole};
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_EQ(ec2.instances({})->size(), 1U);
  EXPECT_EQ(asked, 2);
}

TEST(Ec2, TerminateEndsTheOthersWhenOneIsGone) {
  std::vector<std::string> ended;
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    Parameters said = call.parameters;
    if (said["InstanceId.1"] == "i-gone") {
      return refused(400, "InvalidInstanceID.NotFound", "i-gone");
    }
    ended.push_back(said["InstanceId.1"]);
    return {200, "<TerminateInstancesResponse/>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  ASSERT_TRUE(ec2.terminate({"i-gone", "i-1"}));
  EXPECT_EQ(ended, std::vector<std::string>{"i-1"});
  ASSERT_TRUE(ec2.terminate({}));
}

TEST(Ec2, GroupsAreClosedToTheWorld) {
  std::vector<Parameters> rules;
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "AuthorizeSecurityGroupIngress") {
      rules.push_back(call.parameters);
      return rules.size() == 1
                 ? refused(400, "InvalidPermission.Duplicate", "is there")
                 : Said{200, "<AuthorizeSecurityGroupIngressResponse/>"};
    }
    return call.action == "CreateSecurityGroup"
               ? Said{200, "<CreateSecurityGroupResponse><groupId>sg-9"
                           "</groupId></CreateSecurityGroupResponse>"}
               : Said{200, "<DescribeSecurityGroupsResponse/>"};
  });
  SecurityGroupOrder wish;
  wish.name = "lockstep-c";
  wish.ssh_from = {"203.0.113.7/32", "2001:db8::7/128"};
  wish.tags = {{std::string(kClusterTag), "c"}};
  Ec2 ec2 = ec2_of(cloud);
  const auto id = ec2.security_group(wish);
  ASSERT_TRUE(id) << id.error().to_string();
  EXPECT_EQ(*id, "sg-9");
  ASSERT_EQ(rules.size(), 3U);
  EXPECT_EQ(rules[0]["IpPermissions.1.Groups.1.GroupId"], "sg-9");
  EXPECT_EQ(rules[1]["IpPermissions.1.IpRanges.1.CidrIp"], "203.0.113.7/32");
  EXPECT_EQ(rules[1]["IpPermissions.1.ToPort"], "22");
  EXPECT_EQ(
      rules[2]["IpPermissions.1.Ipv6Ranges.1.CidrIpv6"], "2001:db8::7/128");
  for (const char* open :
       {"0.0.0.0/0", "::/0", "203.0.113.7", "x/8", "1.2/8"}) {
    wish.ssh_from = {open};
    EXPECT_EQ(
        failure_of(ec2.security_group(wish).error()), Failure::kBadRequest)
        << open;
  }
}

// The answer to the first request was lost, the repeated one is refused, and
// for a while nobody sees what the first one made.
TEST(Ec2, AGroupThatIsThereAndNotYetSeenIsWaitedFor) {
  bool made = false;
  int looks = 0;
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "CreateSecurityGroup") {
      made = true;
      return refused(400, "InvalidGroup.Duplicate", "already exists");
    }
    if (call.action == "DescribeSecurityGroups" && made && ++looks == 3) {
      return {
          200,
          "<DescribeSecurityGroupsResponse><securityGroupInfo><item>"
          "<groupId>sg-7</groupId><groupName>lockstep-c</groupName><tagSet>"
          "<item><key>" +
              std::string(kClusterTag) +
              "</key><value>c</value></item></tagSet></item>"
              "</securityGroupInfo></DescribeSecurityGroupsResponse>"};
    }
    return {200, "<Response/>"};
  });
  SecurityGroupOrder wish;
  wish.name = "lockstep-c";
  wish.tags = {{std::string(kClusterTag), "c"}};
  Ec2 ec2 = ec2_of(cloud);
  const auto id = ec2.security_group(wish);
  ASSERT_TRUE(id) << id.error().to_string();
  EXPECT_EQ(*id, "sg-7");
  EXPECT_EQ(looks, 3);

  looks = 3;  // never seen: the refusal is told
  const auto gone = ec2.security_group(wish);
  ASSERT_FALSE(gone);
  EXPECT_THAT(
      gone.error().to_string(), testing::HasSubstr("InvalidGroup.Duplicate"));
}

TEST(Ec2, GroupsOfOthersAreUsedAsTheyAreOrNotAtAll) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    EXPECT_EQ(call.action, "DescribeSecurityGroups");
    Parameters said = call.parameters;
    return {
        200,
        said["Filter.1.Value.1"] == "none"
            ? "<DescribeSecurityGroupsResponse/>"
            : "<DescribeSecurityGroupsResponse><securityGroupInfo><item>"
              "<groupId>sg-7</groupId><groupName>theirs</groupName></item>"
              "</securityGroupInfo></DescribeSecurityGroupsResponse>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  SecurityGroupOrder wish;
  wish.existing = "theirs";
  EXPECT_EQ(*ec2.security_group(wish), "sg-7");
  wish.existing = "none";
  EXPECT_EQ(failure_of(ec2.security_group(wish).error()), Failure::kNotFound);
  wish.existing.clear();
  wish.name = "theirs";
  wish.tags = {{std::string(kClusterTag), "c"}};
  EXPECT_EQ(failure_of(ec2.security_group(wish).error()), Failure::kBadRequest);
}

TEST(Ec2, AnImageOfAnotherArchitectureIsRefused) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "AmazonSSM.GetParameter") {
      return {400, R"({"__type":"ParameterNotFound","message":"none"})"};
    }
    Parameters said = call.parameters;
    const auto image = [](const std::string& id, const std::string& date) {
      return "<item><imageId>" + id +
             "</imageId><name>ubuntu/x</name>"
             "<architecture>x86_64</architecture><creationDate>" +
             date +
             "</creationDate><rootDeviceName>/dev/sda1</rootDeviceName>"
             "<blockDeviceMapping><item><deviceName>/dev/sda1</deviceName>"
             "<ebs><volumeSize>8</volumeSize></ebs></item>"
             "</blockDeviceMapping></item>";
    };
    return {
        200,
        "<DescribeImagesResponse><imagesSet>" +
            (said["ImageId.1"].empty()
                 ? image("ami-old", "2026-01-01T00:00:00.000Z") +
                       image("ami-new", "2026-09-01T00:00:00.000Z") +
                       image("ami-mid", "2026-03-01T00:00:00.000Z")
                 : image(said["ImageId.1"], "")) +
            "</imagesSet></DescribeImagesResponse>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto newest = ec2.image({.id = "", .architecture = "x86_64"});
  ASSERT_TRUE(newest) << newest.error().to_string();
  EXPECT_EQ(newest->id, "ami-new");
  EXPECT_EQ(newest->user, "ubuntu");
  EXPECT_EQ(newest->disk.count, uint64_t{8} << 30);
  const auto other = ec2.image({.id = "ami-5", .architecture = "arm64"});
  ASSERT_FALSE(other);
  EXPECT_EQ(failure_of(other.error()), Failure::kBadRequest);
  EXPECT_NE(other.error().message().find("x86_64"), std::string::npos);
}

TEST(Ec2, AnUnknownTypeComesWithNearOnes) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "DescribeInstanceTypes") {
      return refused(400, "InvalidInstanceType", "do not exist: [c5.xlrage]");
    }
    return {
        200,
        "<DescribeInstanceTypeOfferingsResponse><instanceTypeOfferingSet>"
        "<item><instanceType>c5.xlarge</instanceType></item><item>"
        "<instanceType>m5.large</instanceType></item>"
        "</instanceTypeOfferingSet></DescribeInstanceTypeOfferingsResponse>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto unknown = ec2.offers({"c5.xlrage"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(failure_of(unknown.error()), Failure::kBadRequest);
  EXPECT_NE(unknown.error().message().find("'c5.xlarge'"), std::string::npos);
  const auto elsewhere = ec2.offers({"p3.2xlarge"});
  EXPECT_NE(
      elsewhere.error().message().find("us-west-2 has no p3.2xlarge"),
      std::string::npos);
}

TEST(Ec2, OffersTellWhatATypeHas) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "DescribeInstanceTypes") {
      return {
          200,
          "<DescribeInstanceTypesResponse><instanceTypeSet><item>"
          "<instanceType>g4dn.12xlarge</instanceType><supportedUsageClasses>"
          "<item>on-demand</item><item>spot</item></supportedUsageClasses>"
          "<vCpuInfo><defaultVCpus>48</defaultVCpus></vCpuInfo><memoryInfo>"
          "<sizeInMiB>196608</sizeInMiB></memoryInfo><processorInfo>"
          "<supportedArchitectures><item>x86_64</item>"
          "</supportedArchitectures></processorInfo><gpuInfo><gpus><item>"
          "<name>T4</name><count>4</count><memoryInfo><sizeInMiB>16384"
          "</sizeInMiB></memoryInfo></item></gpus></gpuInfo></item>"
          "</instanceTypeSet></DescribeInstanceTypesResponse>"};
    }
    return {
        200,
        "<DescribeInstanceTypeOfferingsResponse><instanceTypeOfferingSet>"
        "<item><instanceType>g4dn.12xlarge</instanceType><location>us-west-2b"
        "</location></item><item><instanceType>g4dn.12xlarge</instanceType>"
        "<location>us-west-2a</location></item></instanceTypeOfferingSet>"
        "</DescribeInstanceTypeOfferingsResponse>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto offers = ec2.offers({"g4dn.12xlarge"});
  ASSERT_TRUE(offers) << offers.error().to_string();
  const Offer& one = offers->front();
  EXPECT_EQ(one.cpus, 48);
  EXPECT_EQ(one.memory.count, uint64_t{192} << 30);
  EXPECT_EQ(one.accelerators.front().name, "T4");
  EXPECT_EQ(one.accelerators.front().count, 4);
  EXPECT_TRUE(one.spot);
  EXPECT_EQ(one.zones, (std::vector<std::string>{"us-west-2a", "us-west-2b"}));
}

TEST(Ec2, QuotaCountsTheClassAndTheMarket) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    if (call.action == "ServiceQuotasV20190624.GetServiceQuota") {
      return {400, R"({"__type":"NoSuchResourceException","Message":"no"})"};
    }
    if (call.action == "ServiceQuotasV20190624.GetAWSDefaultServiceQuota") {
      EXPECT_NE(call.body.find("L-3819A6DF"), std::string::npos);
      return {
          200, R"({"Quota":{"QuotaName":"All G and VT Spot","Value":64.0}})"};
    }
    return {200, described(machine("i-1", "running"))};
  });
  Ec2 ec2 = ec2_of(cloud);
  const auto quota = ec2.quota(offer("g5.xlarge"), Market::kSpot);
  ASSERT_TRUE(quota) << quota.error().to_string();
  EXPECT_EQ(quota->limit, 64);
  EXPECT_EQ(quota->used, 4);
  EXPECT_EQ(quota->left(), 60);
  EXPECT_EQ(
      failure_of(ec2.quota(offer("mac1.metal"), Market::kSpot).error()),
      Failure::kNotFound);
}

TEST(Ec2, ResourcesOfEveryKindAreRead) {
  FakeCloud cloud([&](const FakeCall& call) -> Said {
    const std::string tags =
        "<tagSet><item><key>lockstep:cluster</key><value>c</value></item>"
        "</tagSet>";
    if (call.action == "DescribeSpotInstanceRequests") {
      return {
          200,
          "<r><spotInstanceRequestSet><item><spotInstanceRequestId>"
          "sir-1</spotInstanceRequestId><state>open</state>" +
              tags + "</item></spotInstanceRequestSet></r>"};
    }
    if (call.action == "DescribeVolumes") {
      return {
          200,
          "<r><volumeSet><item><volumeId>vol-1</volumeId><size>100"
          "</size><status>in-use</status>" +
              tags + "</item></volumeSet></r>"};
    }
    if (call.action == "DescribeKeyPairs") {
      return {
          200,
          "<r><keySet><item><keyPairId>key-1</keyPairId><keyName>k"
          "</keyName>" +
              tags + "</item></keySet></r>"};
    }
    if (call.action == "DescribeSecurityGroups") {
      return {
          200,
          "<r><securityGroupInfo><item><groupId>sg-1</groupId>"
          "<groupName>g</groupName>" +
              tags + "</item></securityGroupInfo></r>"};
    }
    return {200, described(machine("i-1", "running"))};
  });
  Ec2 ec2 = ec2_of(cloud);
  std::vector<std::string> ids;
  for (const ResourceKind kind : kResourceKinds) {
    const auto found = ec2.resources(kind, {});
    ASSERT_TRUE(found) << found.error().to_string();
    ASSERT_EQ(found->size(), 1U);
    EXPECT_EQ(found->front().kind, kind);
    EXPECT_FALSE(found->front().is_over);
    EXPECT_TRUE(matches(found->front().tags, {{"lockstep:cluster", ""}}));
    ids.push_back(found->front().id);
  }
  EXPECT_EQ(
      ids, (std::vector<std::string>{"i-1", "sir-1", "vol-1", "k", "sg-1"}));
}

TEST(Ec2, RemovingWhatIsGoneIsFine) {
  FakeCloud cloud([&](const FakeCall& call) {
    return call.action == "DeleteSecurityGroup"
               ? refused(400, "DependencyViolation", "in use")
               : refused(400, "InvalidVolume.NotFound", "gone");
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_TRUE(ec2.remove(ResourceKind::kVolume, "vol-1"));
  const auto used = ec2.remove(ResourceKind::kSecurityGroup, "sg-1");
  ASSERT_FALSE(used);
  EXPECT_TRUE(used.error().retry());
}

TEST(Ec2, AnImageIsMadeWithTagsOnItsDisk) {
  FakeCloud cloud([&](const FakeCall&) -> Said {
    return {
        200,
        "<CreateImageResponse><imageId>ami-9</imageId></CreateImageResponse>"};
  });
  Ec2 ec2 = ec2_of(cloud);
  EXPECT_EQ(
      *ec2.bake_image("i-1", "base", {{std::string(kClusterTag), "c"}}),
      "ami-9");
  Parameters said = cloud.calls[0].parameters;
  EXPECT_EQ(said["InstanceId"] + said["Name"], "i-1base");
  EXPECT_EQ(said["TagSpecification.1.ResourceType"], "image");
  EXPECT_EQ(said["TagSpecification.2.ResourceType"], "snapshot");
}

TEST(Ec2, TimesAreRead) {
  EXPECT_EQ(parse_time("2026-11-15T08:30:12.000Z"), 1794731412);
  EXPECT_EQ(parse_time("2026-11-15T08:30:12Z"), 1794731412);
  EXPECT_EQ(parse_time("yesterday"), 0);
  EXPECT_EQ(parse_time(""), 0);
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("ab"), "YWI=");
}

TEST(SpotNotices, InterruptionsComeBeforeHints) {
  std::map<std::string, std::string> documents;
  fetch::FakeTransport transport(
      [&](const fetch::FakeTransport::Asked& asked)
          -> Result<fetch::HttpResponse> {
        fetch::HttpResponse response;
        response.status = 200;
        if (asked.request.method == "PUT") {
          response.body = "a-token";
          return response;
        }
        for (const auto& [path, body] : documents) {
          if (asked.request.url.ends_with(path)) {
            response.body = body;
            return response;
          }
        }
        response.status = 404;
        return response;
      });
  os::FakeClock clock;
  fetch::AwsSettings settings;
  fetch::InstanceMetadata metadata(settings, transport, clock);
  SpotNotices notices(metadata);
  EXPECT_FALSE(notices.look()->has_value());
  documents["meta-data/events/recommendations/rebalance"] =
      R"({"noticeTime": "2026-11-15T08:22:00Z"})";
  ASSERT_TRUE(notices.look()->has_value());
  EXPECT_EQ((*notices.look())->kind, Notice::Kind::kRebalance);
  documents["meta-data/spot/instance-action"] =
      R"({"action": "terminate", "time": "2026-11-15T08:30:12Z"})";
  const Notice notice = **notices.look();
  EXPECT_EQ(notice.kind, Notice::Kind::kInterruption);
  EXPECT_EQ(notice.action, "terminate");
  EXPECT_EQ(notice.at, 1794731412);
  documents["meta-data/spot/instance-action"] = "<html>";
  EXPECT_EQ(notices.look().error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace lockstep::cloud::ec2
