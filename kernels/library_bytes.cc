#include "kernels/library_bytes.h"

#include <elf.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/os/foreign_text.h"

namespace holdfast::kernels {
namespace {

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "ARM (aarch64)";
    case EM_386:
      return "x86 of 32 bits";
    case EM_CUDA:
      return "a GPU";
    default:
      return fmt::format("machine {}", machine);
  }
}

std::string problem_of_header(std::string_view bytes, Elf64_Ehdr& header) {
  if (bytes.size() < sizeof(header) || !bytes.starts_with(std::string_view(ELFMAG, SELFMAG)))
    return "it is no shared library (ELF); give what make built, such as kernel.so";
  std::memcpy(&header, bytes.data(), sizeof(header));
  const bool is_wide = header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB;
  if (!is_wide || header.e_machine != EM_X86_64)
    return fmt::format("it was made for {}{}, and this program is for x86-64; build it on this machine",
                       machine_name(header.e_machine), is_wide ? "" : ", of other words");
  if (header.e_type != ET_DYN)
    return "it is no shared library, but an object or a program; link it with -shared";
  return {};
}

// LoadedParts are the parts of the file that the system maps, with the addresses that they get.
class LoadedParts {
 public:
  explicit LoadedParts(std::string_view bytes) : bytes_(bytes) {}

  // Reads the table of them; false where the file lacks the table, or something that the table names.
  bool read(const Elf64_Ehdr& header) {
    const std::uint64_t table_bytes = std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
    if (header.e_phentsize != sizeof(Elf64_Phdr) || !has(header.e_phoff, table_bytes)) return false;
    parts_.resize(header.e_phnum);
    if (!parts_.empty()) std::memcpy(parts_.data(), bytes_.data() + header.e_phoff, table_bytes);
    return std::ranges::all_of(parts_,
                               [this](const Elf64_Phdr& part) { return has(part.p_offset, part.p_filesz); });
  }

  // Returns the entries of the table for the loader of the system: which libraries it needs, and where it looks.
  std::vector<Elf64_Dyn> entries() const {
    std::vector<Elf64_Dyn> found;
    for (const Elf64_Phdr& part : parts_) {
      if (part.p_type != PT_DYNAMIC) continue;
      for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= part.p_filesz; at += sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry = {};
        std::memcpy(&entry, bytes_.data() + part.p_offset + at, sizeof(entry));
        if (entry.d_tag == DT_NULL) break;
        found.push_back(entry);
      }
    }
    return found;
  }

  // Returns the text at an address; empty where the file has none there.
  std::string_view text_at(std::uint64_t address) const {
    for (const Elf64_Phdr& part : parts_) {
      if (part.p_type != PT_LOAD || address < part.p_vaddr || address - part.p_vaddr >= part.p_filesz)
        continue;
      const std::string_view rest =
          bytes_.substr(part.p_offset, part.p_filesz).substr(address - part.p_vaddr);
      return rest.substr(0, rest.find('\0'));
    }
    return {};
  }

 private:
  bool has(std::uint64_t offset, std::uint64_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset;
  }

  std::string_view bytes_;
  std::vector<Elf64_Phdr> parts_;
};

// Returns whether the path begins at the working directory; $ORIGIN is the folder of the library, and what the system puts
// in place of other words, $LIB and $PLATFORM, begins with no slash.
bool is_relative(std::string_view path) {
  for (const std::string_view origin : {"$ORIGIN", "${ORIGIN}"}) {
    if (path.starts_with(origin) && (path.size() == origin.size() || path[origin.size()] == '/'))
      return false;
  }
  return !path.starts_with('/');
}

// An empty folder of a list is the working directory, also behind the last colon; an empty list has none.
std::optional<std::string_view> relative_folder(std::string_view folders) {
  if (folders.empty()) return std::nullopt;
  for (;;) {
    const std::size_t colon = folders.find(':');
    if (is_relative(folders.substr(0, colon))) return folders.substr(0, colon);
    if (colon == std::string_view::npos) return std::nullopt;
    folders.remove_prefix(colon + 1);
  }
}

std::string problem_of_needs(const LoadedParts& parts) {
  const std::vector<Elf64_Dyn> entries = parts.entries();
  const auto texts = std::ranges::find(entries, DT_STRTAB, &Elf64_Dyn::d_tag);
  if (texts == entries.end()) return {};
  for (const Elf64_Dyn& entry : entries) {
    const std::string_view text = parts.text_at(texts->d_un.d_ptr + entry.d_un.d_val);
    if (entry.d_tag == DT_NEEDED && text.find('/') != std::string_view::npos && is_relative(text))
      return fmt::format(
          "it needs the library {} by a path that begins at the working directory, so what it would load "
          "depends on "
          "where a rank is started; link it by its name (-L FOLDER -l NAME)",
          printable(text));
    if (entry.d_tag != DT_RUNPATH && entry.d_tag != DT_RPATH) continue;
    if (const std::optional<std::string_view> folder = relative_folder(text); folder.has_value())
      return fmt::format(
          "it looks for libraries in \"{}\" (-rpath), which begins at the working directory, so what it "
          "would load "
          "depends on where a rank is started; give an absolute folder, or one below $ORIGIN",
          printable(*folder));
  }
  return {};
}

}  // namespace

std::string problem_of_library(std::string_view bytes) {
  Elf64_Ehdr header = {};
  if (std::string problem = problem_of_header(bytes, header); !problem.empty()) return problem;
  LoadedParts parts(bytes);
  if (!parts.read(header))
    return fmt::format(
        "it has {} bytes, which is less than its headers tell of: it was not written or copied whole; build "
        "or copy it again",
        bytes.size());
  return problem_of_needs(parts);
}

}  // namespace holdfast::kernels
