"""test_links.py INFERD [MODULE]: the daemon links nothing of CUDA; the module shows one symbol, and needs of CUDA cuBLASLt alone."""

import re
import subprocess
import sys

CUDA = re.compile(r"lib(cuda|cudart|cublas|cublasLt|nccl|nvidia.*)\.so")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))


def main(inferd, module=None):
    wrong = []
    libraries = needed(inferd)
    if not libraries:
        wrong.append(f"{inferd}: readelf shows no library at all")
    wrong += [f"{inferd}: links {name}" for name in libraries if CUDA.match(name)]
    wrong += [f"{inferd}: has the symbol {name}" for name in re.findall(r"\b(?:cuda[A-Z]|cublas)\w*", run("nm", inferd))]
    if module:
        of_cuda = [name for name in needed(module) if CUDA.match(name)]
        if len(of_cuda) != 1 or not of_cuda[0].startswith("libcublasLt.so"):
            wrong.append(f"{module}: should need cuBLASLt alone of CUDA, not {of_cuda}")
        shown = [line.split()[-1] for line in run("nm", "-D", "--defined-only", module).splitlines()]
        if shown != ["inferd_backend_cuda"]:
            wrong.append(f"{module}: shows {shown}")
    else:
        print("nvcc was not found when this was configured: the module is not looked at")
    print("\n".join(wrong) or "as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
