#pragma once

// EC2's XML into values. Elements that are absent leave their defaults: the
// cloud leaves out what does not apply. Pure, internal to cloud/ec2.

#include <string>
#include <vector>

#include "lockstep/cloud/provider.h"
#include "lockstep/fetch/xml.h"

namespace lockstep::cloud::ec2 {

Tags read_tags(const pugi::xml_node& item);          // its <tagSet>
Instance read_instance(const pugi::xml_node& item);  // of <instancesSet>
int read_cpus(const pugi::xml_node& item);           // of an instance
Offer read_offer(const pugi::xml_node& item);        // of <instanceTypeSet>
Image read_image(const pugi::xml_node& item);        // of <imagesSet>
Resource read_spot_request(const pugi::xml_node& item);
Resource read_volume(const pugi::xml_node& item);
Resource read_key_pair(const pugi::xml_node& item);
Resource read_security_group(const pugi::xml_node& item);
Resource as_resource(const Instance& instance);

// Who logs in to an image, by its name; "ec2-user" where nothing tells.
std::string login_user(const std::string& image_name);

}  // namespace lockstep::cloud::ec2
