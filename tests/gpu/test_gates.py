"""gates.py notices what it is there for: recorded outputs of ptxas and cuobjdump, and, where nvcc is, kernels with a fault compiled on the spot."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import gates
import occupancy

NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4goodILi4EEvPi' for 'sm_80'
ptxas info    : Function properties for _Z4goodILi4EEvPi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compiling entry function '_Z6spillyPf' for 'sm_80'
ptxas info    : Function properties for _Z6spillyPf
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 372 bytes cmem[0]
"""
SASS = """
	code for sm_80
		Function : _Z4goodILi4EEvPi
	.headerflags	@"EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;                  /* 0x00000a00ff017624 */
                                                                                            /* 0x000fe400078e00ff */
        /*0010*/               @P0 LDGSTS.E.BYPASS.LTC128B.128 [R4], [R2.64] ;              /* 0x0000000000007919 */
        /*0020*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;                         /* 0x0000000000007919 */
        /*0030*/                   IMMA.16832.S8.S8 R4, R8.ROW, R10.COL, R4 ;               /* 0x0000000000007919 */
        /*0040*/                   IMMA.16832.S8.S8 R4, R8.ROW, R10.COL, R4 ;               /* 0x0000000000007919 */
        /*0050*/                   EXIT ;                                                   /* 0x000000000000794d */
		Function : _Z6spillyPf
        /*0000*/                   LDL R4, [R1] ;                                           /* 0x0000000000007919 */
        /*0010*/                   STL.64 [R1], R4 ;                                        /* 0x0000000000007919 */
        /*0020*/                   EXIT ;                                                   /* 0x000000000000794d */
"""
SPILLY = """
extern "C" __global__ void __launch_bounds__(1024, 2) spilly(float *y, const float *x, int n) {
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; i++) v[i] = x[threadIdx.x + i * 1024];
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + 3) % 64] + x[k];
    }
#pragma unroll
    for (int i = 0; i < 64; i++) y[threadIdx.x + i * 1024] = v[i];
}
extern "C" __global__ void scalar(int *y, const int *x) { y[threadIdx.x] = x[threadIdx.x] * 3; }
"""


def kernels():
    found = gates.read_ptxas(PTXAS)
    for key, instructions in gates.read_sass(SASS).items():
        found[key].instructions = instructions
    return gates.name_kernels(found)


def wrong(table, ks=None):
    return gates.check(gates.read_table(table), kernels() if ks is None else ks)


GOOD = "good<*> hot 40 128 0 6/6 IMMA.16832,LDGSTS.128,LDG.128\n"
REST = "spilly cold 64 128 0 1/1 -\n"


class Gates(unittest.TestCase):
    def test_as_it_should_be(self):
        self.assertEqual(wrong(GOOD + REST), [])

    def test_each_fault_is_noticed(self):
        for table, words in (
            (GOOD + "spilly hot 64 128 0 1/1 -", ["spills 64 bytes", "a stack of 16 bytes", "2 instructions on local memory"]),
            ("good<*> hot 39 128 0 6/6 -\n" + REST, ["40 registers, of 39 allowed"]),
            ("good<*> hot 40 128 0 13/1 -\n" + REST, ["12 blocks a multiprocessor, 13 wanted"]),
            ("good<*> hot 40 128 100000 2/1 -\n" + REST, ["1 blocks a multiprocessor, 2 wanted"]),
            ("good<*> hot 40 128 170000 1/1 -\n" + REST, ["0 blocks a multiprocessor, 1 wanted"]),
            ("good<*> hot 40 128 0 1/1 IMMA.16816,IMMA.16832\n" + REST, ["no IMMA.16816"]),
            ("good<*> hot 40 128 0 1/1 LDSM\n" + REST, ["no LDSM"]),
            (GOOD, ["no row of the table is for it"]),
            (GOOD + REST + "gone hot 1 1 0 1/1 -", ["gone: a row of the table without a kernel"]),
        ):
            found = wrong(table)
            self.assertEqual(len(found), len(words), found)
            for word in words:
                self.assertTrue(any(word in line for line in found), (word, found))

    def test_names(self):
        for name, plain in (
            ("void good<4>(int*)", "good<4>"),
            ("void (anonymous namespace)::tile<(int)128, __nv_bfloat16, (bool)1>(int (*) [3], a<b>)", "tile<128,__nv_bfloat16,true>"),
            ("plain(float*, unsigned long)", "plain"),
            ("c_name", "c_name"),
        ):
            self.assertEqual(gates.plain_name(name), plain)

    def test_a_table_that_is_none(self):
        for text in ("good hot 40", "good warm 40 128 0 6/6 -", "good hot 40 128 0 6 -", "good hot x 128 0 6/6 -"):
            self.assertRaises(ValueError, gates.read_table, text)

    def test_section(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "B.md")
            for before in ("# B\n\n## One\n\na\n", f"# B\n\n{gates.SECTION}\n\nold\n\n## Two\n\nb\n"):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(before)
                for _ in range(2):  # writing it again changes nothing
                    gates.write_section(path, ["| new |"])
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                self.assertEqual(text.count("## CUDA"), 1)
                self.assertEqual(text.count("| new |"), 1)
                self.assertNotIn("old", text)
                self.assertTrue(text.count("## One\n\na\n\n## CUDA") == 1 or text.endswith("\n\n## Two\n\nb\n"), text)

    def test_occupancy(self):
        # what cuda_occupancy.h of the toolkit (13.0) says of the same
        for architecture, registers, threads, shared, blocks in (
            ("sm_80", 32, 1024, 0, 2), ("sm_80", 33, 1024, 0, 1), ("sm_80", 128, 128, 81920, 2), ("sm_80", 255, 256, 0, 1),
            ("sm_80", 40, 96, 5000, 16), ("sm_80", 16, 32, 0, 32), ("sm_90", 128, 128, 81920, 2), ("sm_90", 64, 256, 33000, 4),
            ("sm_86", 64, 128, 20000, 4), ("sm_89", 24, 64, 0, 24), ("sm_80", 65, 1024, 0, 0), ("sm_90", 168, 384, 232448, 1),
        ):
            self.assertEqual(occupancy.blocks(architecture, registers, threads, shared), blocks, (architecture, registers, threads, shared))

    @unittest.skipUnless(os.access(NVCC, os.X_OK), "nvcc is not here")
    def test_real_kernels(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "f.cu"), os.path.join(folder, "f.o")
            with open(source, "w", encoding="utf-8") as f:
                f.write(SPILLY)
            run = subprocess.run([NVCC, "-arch=sm_80", "-Xptxas=-v", "-c", source, "-o", target], capture_output=True, text=True, check=False)
            if run.returncode != 0:
                self.skipTest("nvcc does not work here: " + run.stderr[-300:])
            found = gates.read_ptxas(run.stderr)
            self.assertEqual(len(found), 2)
            sass = gates.disassemble(target)
            if sass is not None:
                for key, kernel in found.items():
                    kernel.instructions = sass[key]
            text = "\n".join(wrong("spilly hot 255 1024 0 1/1 -\nscalar hot 255 128 0 1/1 IMMA.16832", gates.name_kernels(found)))
            self.assertRegex(text, r"spilly: spills \d+ bytes")
            if sass is not None:
                self.assertRegex(text, r"spilly: \d+ instructions on local memory")
                self.assertIn("scalar: no IMMA.16832", text)


if __name__ == "__main__":
    unittest.main()
