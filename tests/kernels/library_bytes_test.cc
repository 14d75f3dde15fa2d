// Examines libraries that the test puts together byte by byte.
#include "kernels/library_bytes.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace holdfast::test {
namespace {

using kernels::problem_of_library;
using testing::HasSubstr;
using testing::IsEmpty;

template <typename Part>
void append(std::string& bytes, const Part& part) {
  bytes.append(reinterpret_cast<const char*>(&part), sizeof(part));
}

// Returns a library with one entry for the loader of the system: a header, two parts, the entries and their texts.
std::string library_with(std::int64_t tag, const std::string& text) {
  constexpr std::uint64_t address = 0x1000, entries_at = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr),
                          texts_at = entries_at + 3 * sizeof(Elf64_Dyn);
  const std::string texts = std::string(1, '\0') + text + std::string(1, '\0');
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_DYN;
  header.e_machine = EM_X86_64;
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  Elf64_Phdr loaded = {};
  loaded.p_type = PT_LOAD;
  loaded.p_vaddr = address;
  loaded.p_filesz = loaded.p_memsz = texts_at + texts.size();
  Elf64_Phdr dynamic = {};
  dynamic.p_type = PT_DYNAMIC;
  dynamic.p_offset = entries_at;
  dynamic.p_filesz = 3 * sizeof(Elf64_Dyn);
  std::string bytes;
  append(bytes, header);
  append(bytes, loaded);
  append(bytes, dynamic);
  append(bytes, Elf64_Dyn{.d_tag = tag, .d_un = {.d_val = 1}});
  append(bytes, Elf64_Dyn{.d_tag = DT_STRTAB, .d_un = {.d_ptr = address + texts_at}});
  append(bytes, Elf64_Dyn{.d_tag = DT_NULL, .d_un = {.d_val = 0}});
  return bytes + texts;
}

TEST(LibraryBytes, WholeIsOneThatHasWhatItsHeadersTell) {
  const std::string whole = library_with(DT_NEEDED, "libm.so.6");
  EXPECT_THAT(problem_of_library(whole), IsEmpty());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(problem_of_library(std::string_view(whole).substr(0, size)), "") << size;
  EXPECT_THAT(problem_of_library(std::string_view(whole).substr(0, whole.size() - 1)),
              HasSubstr("which is less than its headers tell of"));
}

TEST(LibraryBytes, NumbersThatOverflowAreNotWhole) {
  const std::string whole = library_with(DT_NEEDED, "libm.so.6");
  const std::size_t first_part = sizeof(Elf64_Ehdr);
  for (const std::size_t field : {offsetof(Elf64_Ehdr, e_phoff), first_part + offsetof(Elf64_Phdr, p_offset),
                                  first_part + offsetof(Elf64_Phdr, p_filesz)}) {
    std::string bytes = whole;
    bytes.replace(field, sizeof(std::uint64_t), sizeof(std::uint64_t), '\xff');
    EXPECT_THAT(problem_of_library(bytes), HasSubstr("which is less than its headers tell of")) << field;
  }
}

TEST(LibraryBytes, NothingIsLoadedFromTheWorkingDirectory) {
  for (const char* text : {"libmine.so", "/usr/lib/libmine.so", "$ORIGIN/libmine.so"})
    EXPECT_THAT(problem_of_library(library_with(DT_NEEDED, text)), IsEmpty()) << text;
  for (const char* text : {"./libmine.so", "lib/libmine.so", "$LIB/libmine.so", "$ORIGINAL/libmine.so"})
    EXPECT_THAT(problem_of_library(library_with(DT_NEEDED, text)), HasSubstr(text));
  for (const char* text : {"", "/usr/lib", "$ORIGIN:/usr/lib", "${ORIGIN}/lib"})
    EXPECT_THAT(problem_of_library(library_with(DT_RUNPATH, text)), IsEmpty()) << text;
  for (const char* text : {".", "$ORIGIN:lib", "lib:/usr/lib", "/usr/lib::$ORIGIN", "/usr/lib:", ":/usr/lib",
                           "$LIB", "${LIB}/mine", "$PLATFORM/lib"})
    EXPECT_THAT(problem_of_library(library_with(DT_RUNPATH, text)), HasSubstr("it looks for libraries in"))
        << text;
}

}  // namespace
}  // namespace holdfast::test
