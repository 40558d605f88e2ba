/* SPDX-License-Identifier: MIT
 *
 * Reads what assemble.py wrote, and finds the kernel of the program that is the one of the host: by
 * the name of the host's function in the symbols of the running program. The compiler's names have
 * one part that differs, a number of the source file in names of functions with internal linkage.
 */
#include "tests/cuda/emulate.hpp"
#include "tests/cuda/ptx/machine.hpp"
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <elf.h>
#include <fstream>
#include <link.h>
#include <map>
#include <sstream>

namespace ptx {
namespace {

std::vector<kernel> kernels;
std::map<const void *, kernel *> by_function;

/* Demangled, without that part. */
std::string plain_name(const std::string &mangled) {
    int status;
    char *text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    std::string name = status == 0 ? text : mangled;
    free(text);
    for (size_t at; (at = name.find("_INTERNAL_")) != std::string::npos;)
        name.erase(at, name.find("::", at) + 2 - at);
    for (std::string word : {"&(", "(unsigned short))", "(float))", "&"}) /* compilers differ */
        for (size_t at; (at = name.find(word)) != std::string::npos;)
            name.erase(at, word.size());
    return name;
}

void read_code(kernel *k, std::istream &words) {
    instruction i;
    words >> i.name >> i.line >> i.guard;
    for (int64_t o; words >> o;)
        i.operand.push_back(o);
    if (!find_operation(&i))
        emulate_fail("%s of %s is not in operations.cpp", i.name.c_str(), k->name.c_str());
    k->code.push_back(i);
}

void read_line(const std::string &line) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "kernel") {
        kernel k = {};
        words >> k.name >> k.register_bytes >> k.shared_bytes >> k.local_bytes;
        kernels.push_back(k);
    } else if (what == "parameter") {
        parameter p;
        words >> p.offset >> p.bytes;
        kernels.back().parameters.push_back(p);
        kernels.back().parameter_bytes = p.offset + p.bytes;
    } else if (what == "constant") {
        constant c;
        words >> c.place >> c.bytes >> c.value;
        kernels.back().constants.push_back(c);
    } else {
        read_code(&kernels.back(), words);
    }
}

/* Functions of this program, from the table that a debugger would read. */
template <typename F> void each_symbol(F use) {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    auto *head = reinterpret_cast<const ElfW(Ehdr) *>(data.data());
    auto *sections = reinterpret_cast<const ElfW(Shdr) *>(data.data() + head->e_shoff);
    for (int s = 0; s < head->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        const char *names = data.data() + sections[sections[s].sh_link].sh_offset;
        auto *symbol = reinterpret_cast<const ElfW(Sym) *>(data.data() + sections[s].sh_offset);
        for (size_t n = sections[s].sh_size / sizeof *symbol; n-- > 0; symbol++)
            if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_value != 0)
                use(std::string(names + symbol->st_name), symbol->st_value);
    }
}

/* Where this program was loaded. */
uint64_t load_address() {
    uint64_t base = 0;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *out) {
            *static_cast<uint64_t *>(out) = info->dlpi_addr;
            return 1;
        },
        &base);
    return base;
}

void find_functions() {
    std::map<std::string, kernel *> names;
    for (kernel &k : kernels)
        names[plain_name(k.name)] = &k;
    uint64_t base = load_address();
    each_symbol([&](const std::string &name, uint64_t at) {
        auto found = names.find(plain_name(name));
        if (found != names.end())
            by_function[reinterpret_cast<const void *>(base + at)] = found->second;
    });
}

/* A line for each kernel that ran: how often, its name. */
void count_launches() {
    const char *path = getenv("EMULATE_LAUNCHES");
    FILE *file = path ? fopen(path, "a") : nullptr;
    for (const kernel &k : kernels)
        if (file && k.launches > 0)
            fprintf(file, "%llu %s\n", static_cast<unsigned long long>(k.launches),
                    plain_name(k.name).c_str());
    if (file)
        fclose(file);
}

bool read_program() {
    const char *path = getenv("EMULATE_PTX");
    if (!path)
        return false;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        read_line(line);
    if (kernels.empty())
        emulate_fail("no program in %s", path);
    find_functions();
    atexit(count_launches);
    return true;
}

} // namespace

kernel *find_kernel(const void *host_function) {
    static bool used = read_program();
    if (!used)
        return nullptr;
    auto found = by_function.find(host_function);
    if (found == by_function.end())
        emulate_fail("a kernel is launched that the program in EMULATE_PTX does not have");
    return found->second;
}

} // namespace ptx
