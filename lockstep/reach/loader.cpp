#include "lockstep/reach/loader.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"

namespace lockstep::reach {
namespace {

// libc and what is built with it must be the node's own, as must what talks
// to a GPU's kernel driver.
constexpr std::array<std::string_view, 18> kOfEverySystem = {
    "linux-vdso.so",
    "ld-linux",
    "libc.so",
    "libm.so",
    "libmvec.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libutil.so",
    "libresolv.so",
    "libanl.so",
    "libnsl.so.1",
    "libnss_",
    "libBrokenLocale",
    "libthread_db.so",
    "libcuda.so",
    "libnvidia-",
    "/lib64/ld-linux"};

bool is_of_every_system(std::string_view name) {
  return std::ranges::any_of(kOfEverySystem, [&](std::string_view one) {
    return name.starts_with(one);
  });
}

template <class T>
bool take(std::string_view file, uint64_t offset, T& value) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) {
    return false;
  }
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return true;
}

Result<std::string> run_loader(
    const std::string& loader,
    const os::Path& program) {
  const os::Descriptor output(::memfd_create("lockstep-list", MFD_CLOEXEC));
  if (!output) {
    return os_error("cannot make a memory file", errno);
  }
  os::SpawnOptions options;
  options.argv = {loader, "--list", program.string()};
  options.environment = os::environment();
  options.standard = {-1, output.get(), output.get()};
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  const auto status =
      process->wait(os::Deadline::after(std::chrono::seconds(60)));
  if (!status) {
    (void)process->signal(SIGKILL).has_value();
    return status.error();
  }
  const off_t size = ::lseek(output.get(), 0, SEEK_END);
  std::string text(static_cast<size_t>(std::max<off_t>(size, 0)), '\0');
  const ssize_t count = ::pread(output.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (!status->ok() && text.find("=> not found") == std::string::npos) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} does not load: {}",
            program.string(),
            text.substr(0, text.find('\n'))));
  }
  return text;
}

}  // namespace

Result<std::string> interpreter_of(std::string_view file) {
  if (!file.starts_with(ELFMAG) || file.size() < EI_NIDENT ||
      file[EI_CLASS] != ELFCLASS64 || file[EI_DATA] != ELFDATA2LSB) {
    return std::string();
  }
  const Error cut(ErrorCode::kCorrupt, "the program is cut short");
  Elf64_Ehdr header{};
  if (!take(file, 0, header)) {
    return cut;
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    if (!take(file, header.e_phoff + i * header.e_phentsize, part)) {
      return cut;
    }
    if (part.p_type == PT_INTERP) {
      if (part.p_offset > file.size() ||
          file.size() - part.p_offset < part.p_filesz) {
        return cut;
      }
      const std::string_view text = file.substr(part.p_offset, part.p_filesz);
      return std::string(text.substr(0, text.find('\0')));
    }
  }
  return std::string();
}

Result<std::vector<Library>> parse_loader_list(const std::string& text) {
  std::vector<Library> libraries;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = std::string_view(text).substr(start, end - start);
    start = end + 1;
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    constexpr std::string_view kArrow = " => ";
    const size_t arrow = line.find(kArrow);
    const std::string_view name = line.substr(0, arrow);
    if (arrow == std::string_view::npos || is_of_every_system(name)) {
      continue;
    }
    std::string_view path = line.substr(arrow + kArrow.size());
    if (path == "not found") {
      return Error(
                 ErrorCode::kNotFound,
                 fmt::format("the library {} is not on this machine", name))
          .with_fix("install it, or set LD_LIBRARY_PATH");
    }
    path = path.substr(0, path.rfind(" ("));
    libraries.push_back(
        {std::string(name.substr(name.rfind('/') + 1)), os::Path(path)});
  }
  return libraries;
}

Result<std::vector<Library>> libraries_of(const os::Path& program) {
  LOCKSTEP_ASSIGN(const os::MappedFile file, os::MappedFile::open(program));
  const auto bytes = file.bytes();
  LOCKSTEP_ASSIGN(
      const std::string loader,
      interpreter_of(
          {reinterpret_cast<const char*>(bytes.data()), bytes.size()})
          .with_context(program.string()));
  if (loader.empty()) {
    return std::vector<Library>();
  }
  LOCKSTEP_ASSIGN(const std::string text, run_loader(loader, program));
  return parse_loader_list(text).with_context(program.string());
}

}  // namespace lockstep::reach
