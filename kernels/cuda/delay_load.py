#!/usr/bin/env python3
"""Archives that stand for the CUDA libraries at link time and open the real ones at the first call.

candle's `cuda` feature links libcuda, libcublas, libcublasLt, libcurand and libnvrtc, so a binary would not start on a machine
without them. Here -lcuda finds a linker script that names an archive of trampolines: the first call of a function opens the
library and jumps; where the library is absent every function answers its library's error code, which cudarc reports as an error.
The names are those that cudarc declares. libcudart is linked statically. x86-64 System V.

usage: delay_load.py FOLDER CUDARC_SOURCE LIBCUDART_STATIC_A
"""

import pathlib
import re
import subprocess
import sys

# Library: cudarc's module, names of the shared object, the code of "not here".
LIBRARIES = {
    "cuda": ("driver", ["libcuda.so.1"], 100),
    "cublas": ("cublas", ["libcublas.so.13", "libcublas.so.12"], 1),
    "cublasLt": ("cublaslt", ["libcublasLt.so.13", "libcublasLt.so.12"], 1),
    "curand": ("curand", ["libcurand.so.10"], 203),
    "nvrtc": ("nvrtc", ["libnvrtc.so.13", "libnvrtc.so.12"], 11),
}

SAVED = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"]


def trampolines(library: str, names: list[str]) -> str:
    """One jump a function, through a slot that at first leads to the resolver with the function's number."""
    text, data = [".text"], [".data", ".p2align 3", f".globl {library}_slots", f".hidden {library}_slots", f"{library}_slots:"]
    for number, name in enumerate(names):
        text += [f".globl {name}", f".type {name},@function", f"{name}: jmp *{library}_slot_{number}(%rip)"]
        text += [f"{library}_first_{number}: pushq ${number}", f" jmp {library}_common"]
        data += [f"{library}_slot_{number}: .quad {library}_first_{number}"]
    text += [f"{library}_common:"] + [f" pushq %{register}" for register in SAVED] + [" subq $136,%rsp"]
    text += [f" movdqu %xmm{k},{16 * k}(%rsp)" for k in range(8)]
    text += [" movq 192(%rsp),%rdi", f" call {library}_resolve", " movq %rax,%r11"]
    text += [f" movdqu {16 * k}(%rsp),%xmm{k}" for k in range(8)] + [" addq $136,%rsp"]
    text += [f" popq %{register}" for register in reversed(SAVED)] + [" addq $8,%rsp", " jmp *%r11"]
    return "\n".join(text + data + ['.section .note.GNU-stack,"",@progbits', ""])


def resolver(library: str, names: list[str], objects: list[str], absent: int) -> str:
    """What finds a function at its first call."""
    listed = ",".join(f'"{name}"' for name in names)
    opened = " ".join(f'if (!handle) handle = dlopen("{name}", RTLD_NOW | RTLD_LOCAL);' for name in objects)
    told = "by_pointer" if library == "cuda" else "by_return"
    return f"""#include <dlfcn.h>
#include <string.h>
extern void* {library}_slots[] __attribute__((visibility("hidden")));
static const char* const names[] = {{{listed}}};
static const char* const missing = "{objects[0]} is not on this machine";
static int absent(void) {{ return {absent}; }}
static int by_pointer(int code, const char** text) {{ (void)code; *text = missing; return 0; }}
static const char* by_return(int code) {{ (void)code; return missing; }}
__attribute__((visibility("hidden"))) void* {library}_resolve(long number) {{
    static void* handle;
    static int tried;
    void* function = 0;
    if (!tried) {{ {opened} tried = 1; }}
    if (handle) function = dlsym(handle, names[number]);
    int text = strstr(names[number], "ErrorString") || strstr(names[number], "ErrorName") || strstr(names[number], "GetStatus");
    (void)by_pointer, (void)by_return;
    if (!function) function = text ? (void*){told} : (void*)absent;
    {library}_slots[number] = function;
    return function;
}}
"""


def make(folder: pathlib.Path, library: str, names: list[str], objects: list[str], absent: int) -> None:
    """Compiles one archive and the linker script that names it."""
    (folder / f"{library}.S").write_text(trampolines(library, names))
    (folder / f"{library}.c").write_text(resolver(library, names, objects, absent))
    archive = folder / f"lib{library}_delayed.a"
    archive.unlink(missing_ok=True)
    for source, target in ((f"{library}.c", f"{library}_c.o"), (f"{library}.S", f"{library}_s.o")):
        subprocess.check_call(["cc", "-c", "-fPIC", "-O1", source, "-o", target], cwd=folder)
    subprocess.check_call(["ar", "rcs", archive.name, f"{library}_c.o", f"{library}_s.o"], cwd=folder)
    (folder / f"lib{library}.so").write_text(f"INPUT({archive})\n")


def main() -> None:
    """Makes every archive."""
    folder, cudarc, cudart = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    folder.mkdir(parents=True, exist_ok=True)
    for library, (module, objects, absent) in LIBRARIES.items():
        declared = (cudarc / "src" / module / "sys" / "mod.rs").read_text()
        names = sorted(set(re.findall(r"pub unsafe fn ((?:cu|nvrtc)\w*)\s*\(", declared)) - {"culib"})
        make(folder, library, names, objects, absent)
        print(f"{library}: {len(names)} functions")
    (folder / "libcudart.so").write_text(f"INPUT({cudart})\n")


if __name__ == "__main__":
    main()
