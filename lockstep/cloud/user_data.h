#pragma once

// The lease of a rented machine, as text that it runs at its first boot. A
// loop, kept alive over crashes and reboots where systemd is there, reads the
// lease file and shuts the machine down when the time in it is over; with
// terminate-on-shutdown that ends the machine. It needs no credentials and no
// network. It fails closed: a lease file that is absent, not ours, or further
// in the future than the longest lease ends the machine too (after kPatience,
// so that nobody is hit by a file that is just being replaced), and a clock
// that is set back does not make a lease longer. With an idle time the loop
// itself renews while the machine is in use: somebody is logged in by ssh, or a
// run of lockstep is there. Nothing renews beyond the end, which also stands in
// <folder>/lease/end, where it can only be made earlier. The text holds no
// secret: anybody on the machine can read it. What the cloud never boots far
// enough to run this is the controller's to end.

#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/os/file.h"

namespace lockstep::cloud {

inline constexpr std::string_view kLeaseFolder = "/var/lib/lockstep";
inline constexpr Duration kLeasePatience = std::chrono::seconds(10);
// EC2 takes no more.
inline constexpr size_t kMostUserData = 16384;

struct UserDataOptions {
  Duration lease = std::chrono::minutes(30);  // the first, from boot
  Duration longest = std::chrono::hours(24);  // a renewal reaches no further
  Duration period = std::chrono::seconds(5);  // between two looks
  // In use, the lease reaches at least so far; 0: use does not count.
  Duration idle = {};
  double end = 0;              // Unix seconds: at the latest; 0: no end
  std::string user = "root";   // who logs in and may renew the lease
  std::string authorized_key;  // a line of a .pub file; empty: none
  std::string folder = std::string(kLeaseFolder);
};

// kInvalidInput for a lease that is not within 10 s and `longest`, a user name
// or key that is none (a private key above all), or a text beyond the limit.
Result<std::string> make_user_data(const UserDataOptions& options);

// Where the lease stands: <folder>/lease/until, one line
// "lockstep-lease 1 <Unix seconds>". Its folder belongs to the user.
os::Path lease_file(const os::Path& folder = os::Path(kLeaseFolder));
std::string lease_text(double until);
// kCorrupt when the text is not one of ours.
Result<double> parse_lease(std::string_view text);
// For the agent, on the machine: replaces the file whole.
Result<void> renew_lease(
    const os::Path& folder,
    double until,
    os::FileSystem& files = os::real_files());

}  // namespace lockstep::cloud
