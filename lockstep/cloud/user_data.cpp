#include "lockstep/cloud/user_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace lockstep::cloud {
namespace {

constexpr std::string_view kMark = "lockstep-lease 1 ";
constexpr Duration kShortest = std::chrono::seconds(10);

// Until 5138: longer ones overflow no shell.
constexpr size_t kMostDigits = 11;

// POSIX sh, no tools beyond those of any image. `due` is on the clock that
// nobody can set; the folder of an image that was made of this machine knows
// another one by its board.
constexpr std::string_view kScript = R"script(#!/bin/sh
# lockstep: this machine ends itself when its lease is over. The time stands in
# @FOLDER@/lease/until; whoever uses the machine renews it. No secrets here.
umask 022
mkdir -p '@FOLDER@/lease'
cat > '@FOLDER@/lease.sh' <<'LOCKSTEP_LEASE'
#!/bin/sh
folder='@FOLDER@'
board=$(cat /sys/class/dmi/id/product_uuid 2>/dev/null)
[ "$board" = "$(cat "$folder/board" 2>/dev/null)" ] || exit 3
end() {
  echo "lockstep: $1; shutting down" >&2
  while :; do
    if command -v shutdown >/dev/null 2>&1; then
      shutdown -h now
    else
      poweroff
    fi
    sleep 15
  done
}
# Logged in, not only knocking; or a run of lockstep.
in_use() {
  pgrep -f '^sshd(-session)?: [A-Za-z0-9._-]+@' >/dev/null 2>&1 ||
    pgrep -f 'lockstep[^ ]* (agent|head|keeper)( |$)' >/dev/null 2>&1
}
# The time in a file of ours; nothing for what is none.
time_in() {
  [ -f "$1" ] || return 0
  text=$(head -c 64 "$1" 2>/dev/null | head -n 1)
  case $text in
    'lockstep-lease 1 '*) text=${text#lockstep-lease 1 } ;;
    *) return 0 ;;
  esac
  case $text in
    '' | 0* | *[!0-9]*) return 0 ;;
  esac
  [ ${#text} -gt @DIGITS@ ] || echo "$text"
}
last='' due=0 wrong=''
while :; do
  now=$(date +%s)
  read -r up _ < /proc/uptime
  up=${up%%.*}
  for over in "$(time_in "$folder/end")" "$(time_in "$folder/lease/end")"; do
    if [ -n "$over" ] && [ "$now" -ge "$over" ]; then
      end 'its time is over'
    fi
  done
  time=$(time_in "$folder/lease/until")
  if [ -n "$time" ] && [ @IDLE@ -gt 0 ] && [ "$now" -lt "$time" ] &&
    [ $((time - now)) -lt @IDLE@ ] && in_use; then
    time=$((now + @IDLE@))
    echo "lockstep-lease 1 $time" > "$folder/until.new" &&
      chown '@USER@' "$folder/until.new" &&
      mv -f "$folder/until.new" "$folder/lease/until"
  fi
  if [ -n "$time" ] && [ "$time" != "$last" ]; then
    if [ $((time - now)) -gt @LONGEST@ ]; then
      time=''
    else
      last=$time
      due=$((up + time - now))
    fi
  fi
  if [ -n "$time" ]; then
    wrong=''
    if [ "$now" -ge "$time" ] || [ "$up" -ge "$due" ]; then
      end 'the lease is over'
    fi
  else
    wrong=${wrong:-$up}
    if [ $((up - wrong)) -ge @PATIENCE@ ]; then
      end 'the lease is absent or not one of ours'
    fi
  fi
  sleep @PERIOD@
done
LOCKSTEP_LEASE
cat /sys/class/dmi/id/product_uuid > '@FOLDER@/board' 2>/dev/null
echo "lockstep-lease 1 $(($(date +%s) + @LEASE@))" > '@FOLDER@/lease/until'
chown -R '@USER@' '@FOLDER@/lease'
@END@if [ -d /run/systemd/system ]; then
  cat > /etc/systemd/system/lockstep-lease.service <<'LOCKSTEP_UNIT'
[Unit]
Description=ends this machine when its lockstep lease is over
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh @FOLDER@/lease.sh
Restart=always
RestartSec=1
RestartPreventExitStatus=3
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
LOCKSTEP_UNIT
  # A session whose other end is gone must not count as use.
  mkdir -p /etc/ssh/sshd_config.d
  printf 'ClientAliveInterval 15\nClientAliveCountMax 4\n' \
    > /etc/ssh/sshd_config.d/01-lockstep.conf
  systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null
  systemctl daemon-reload
  systemctl enable lockstep-lease.service
  systemctl restart --no-block lockstep-lease.service
else
  setsid sh -c 'while sh "$0"; [ $? -ne 3 ]; do sleep 1; done' \
    '@FOLDER@/lease.sh' </dev/null >'@FOLDER@/lease.log' 2>&1 &
fi
@KEY@)script";

constexpr std::string_view kKeyScript = R"script(
home=$(getent passwd '@USER@' | cut -d: -f6)
mkdir -p "$home/.ssh"
touch "$home/.ssh/authorized_keys"
if ! grep -qxF '@LINE@' "$home/.ssh/authorized_keys"; then
  echo '@LINE@' >> "$home/.ssh/authorized_keys"
fi
chmod 700 "$home/.ssh"
chmod 600 "$home/.ssh/authorized_keys"
chown -R '@USER@' "$home/.ssh"
)script";

std::string fill(std::string text, std::string_view name, std::string value) {
  const std::string mark = fmt::format("@{}@", name);
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;
       at += value.size()) {
    text.replace(at, mark.size(), value);
  }
  return text;
}

bool has_only(std::string_view text, std::string_view more) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || more.find(c) != std::string_view::npos;
  });
}

Error bad(const std::string& what) {
  return Error(ErrorCode::kInvalidInput, what);
}

// Kind and key without the comment, which may hold anything.
Result<std::string> read_key(const std::string& line) {
  constexpr std::string_view kKinds[] = {
      "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"};
  if (line.find("PRIVATE KEY") != std::string::npos) {
    return bad("a private key must not travel; give the line of the .pub file");
  }
  const size_t space = line.find(' ');
  const std::string kind = line.substr(0, space);
  const std::string rest =
      space == std::string::npos ? "" : line.substr(space + 1);
  const std::string key = rest.substr(0, rest.find(' '));
  if (std::ranges::none_of(
          kKinds,
          [&](std::string_view one) { return kind.starts_with(one); }) ||
      !has_only(kind, "-@.") || !key.starts_with("AAAA") ||
      !has_only(key, "+/=") || line.find('\n') != std::string::npos) {
    return bad(
        "this is no public key; accepted: one line as in id_ed25519.pub");
  }
  return kind + " " + key;
}

std::string seconds_text(Duration value) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::seconds>(value).count());
}

}  // namespace

Result<std::string> make_user_data(const UserDataOptions& options) {
  if (options.longest < kShortest || options.lease < kShortest ||
      options.lease > options.longest) {
    return bad(
        fmt::format(
            "a lease of {} is not within {} and {}",
            format_duration(options.lease),
            format_duration(kShortest),
            format_duration(options.longest)));
  }
  if (options.period < std::chrono::seconds(1) ||
      options.period > options.lease) {
    return bad(
        fmt::format(
            "a look every {} does not keep a lease of {}",
            format_duration(options.period),
            format_duration(options.lease)));
  }
  if (options.idle < Duration(0) || options.idle > options.longest) {
    return bad(
        fmt::format(
            "an idle time of {} is not within 0 and {}",
            format_duration(options.idle),
            format_duration(options.longest)));
  }
  if (options.user.empty() || options.user.size() > 32 ||
      options.user.starts_with('-') || !has_only(options.user, "_-.")) {
    return bad(fmt::format("'{}' is no user name", options.user));
  }
  if (!options.folder.starts_with('/') || !has_only(options.folder, "/_-.")) {
    return bad(fmt::format("'{}' is no absolute folder", options.folder));
  }
  std::string key;
  if (!options.authorized_key.empty()) {
    std::string line = options.authorized_key;
    while (line.ends_with('\n') || line.ends_with('\r')) {
      line.pop_back();
    }
    LOCKSTEP_ASSIGN(line, read_key(line));
    key = fill(std::string(kKeyScript), "LINE", line);
  }
  std::string text = fill(std::string(kScript), "KEY", key);
  text = fill(std::move(text), "FOLDER", options.folder);
  text = fill(std::move(text), "USER", options.user);
  text = fill(std::move(text), "LEASE", seconds_text(options.lease));
  text = fill(
      std::move(text),
      "END",
      options.end > 0 ? fmt::format(
                            "echo 'lockstep-lease 1 {:.0f}' > '{}/end'\n",
                            std::floor(options.end),
                            options.folder)
                      : "");
  text = fill(std::move(text), "IDLE", seconds_text(options.idle));
  text = fill(std::move(text), "LONGEST", seconds_text(options.longest));
  text = fill(std::move(text), "PERIOD", seconds_text(options.period));
  text = fill(std::move(text), "PATIENCE", seconds_text(kLeasePatience));
  text = fill(std::move(text), "DIGITS", std::to_string(kMostDigits));
  if (text.size() > kMostUserData) {
    return bad(
        fmt::format(
            "user-data has {} bytes; at most {} are taken",
            text.size(),
            kMostUserData));
  }
  return text;
}

os::Path lease_file(const os::Path& folder) {
  return folder / "lease" / "until";
}

std::string lease_text(double until) {
  return fmt::format("{}{:.0f}\n", kMark, std::floor(until));
}

Result<double> parse_lease(std::string_view text) {
  std::string_view rest = text;
  int64_t value = 0;
  bool good = rest.starts_with(kMark);
  if (good) {
    rest.remove_prefix(kMark.size());
    if (rest.ends_with('\n')) {
      rest.remove_suffix(1);
    }
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), value);
    good = error == std::errc() && end == rest.data() + rest.size() &&
           rest.size() <= kMostDigits && value > 0 && !rest.starts_with('0');
  }
  if (!good) {
    return Error(ErrorCode::kCorrupt, "this is no lease of lockstep");
  }
  return static_cast<double>(value);
}

Result<void>
renew_lease(const os::Path& folder, double until, os::FileSystem& files) {
  return files.write_atomic(lease_file(folder), lease_text(until))
      .with_context("renewing the lease");
}

}  // namespace lockstep::cloud
