"""dev/kernel_table.py on machine code written here: a stand-in for cuobjdump prints the "objects", which are text.
Standard library only.
"""
import os
import shutil

from support.scripts import ROOT, SCRIPTS, ScriptTest

FORWARD = """STL [R1], R2
SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R6 ; // 10: a step
@!P0 BRA 0x120
HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT
HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24, gsb0
@!P1 BRA 0x80
FSEL R24, R24, -INF, P2 ; // the mask
FSEL R25, R25, -INF, P3
FMNMX R5, R24, R25, !PT
FFMA R24, R24, R7, -R5
MUFU.EX2 R24, R24
HGMMA.64x64x16.F32.BF16 R136, R88, gdesc[UR12].tnspB, R136, gsb0
LDS R2, [R3]
@P2 BRA 0x10
SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R6
@!P0 BRA 0x150
HGMMA.64x64x16.F32.BF16 R136, R88, gdesc[UR12].tnspB, R136, gsb0
EXIT
SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R6 ; // 120: waits that try again
@!P0 BRA 0x120
BRA 0x30
SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R6
@!P0 BRA 0x150
BRA 0x100
BRA 0x180"""
# S and dP begin at zero; a branch may name its predicate as an operand
KEYS = """MOV R1, R2
HGMMA.64x64x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT
BRA P0, 0x50
HGMMA.64x64x16.F32.BF16 R56, gdesc[UR16], RZ, !UPT, gsb0
BRA 0x10
EXIT"""
# a branch back, but no loop
STRAIGHT = """SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R6
@!P0 BRA 0x40
HGMMA.64x64x16.F32.BF16 R136, R88, gdesc[UR12].tnspB, R136, gsb0
EXIT
BRA 0x20"""
# a loop around the loop; the copy of the next rows is needed
TENSOR = """MOV R1, R2
LDSM.16.M88.4 R4, [R2]
@P2 BRA 0x40
LDGSTS.E.BYPASS.128 [R5], [R6.64]
HMMA.16816.F32.BF16 R8, R4, R12, RZ
HMMA.16816.F32.BF16 R8, R4, R14, R8
@P0 BRA 0x10
@P1 BRA 0x0
EXIT"""
POLICY = "kernel<Softmax<FastMaths>, "


class KernelTable(ScriptTest):
  def setUp(self):
    super().setUp()
    for folder in ("dev", "bin", "pip", "cuda"):
      os.mkdir(self.path(folder))
    for name in ("kernel_table.py", "root.py", "sass.py"):
      shutil.copy(os.path.join(ROOT, "dev", name), self.path("dev"))
    os.symlink(SCRIPTS, self.path("scripts"))
    self.tool("bin/cuobjdump")
    code = {"attention_forward_hopper_" + POLICY + "HopperTile<64, HopperSize{128, 8}, 1, 0, false> >": FORWARD,
            "attention_forward_hopper_" + POLICY + "Window, HopperTile<64, HopperSize{128, 8}, 1, 0, false> >": FORWARD,
            "attention_backward_keys_hopper_" + POLICY + "HopperTile<64, HopperSize{64, 8}, 2, 2, true> >": KEYS,
            "attention_backward_queries_hopper_" + POLICY + "HopperTile<64, HopperSize{128, 4}, 2, 0> >": STRAIGHT,
            "attention_forward_tensor_kernel<bf16, Softmax<FastMaths>, TensorTile<64, TensorSize{2, 64}> >": TENSOR}
    text = ""
    for name, lines in code.items():
      text += f"\t\tFunction : {name}\n\t.headerflags\t@\"EF_CUDA_SM90\"\n"
      for n, line in enumerate(line.split(" ; //")[0] for line in lines.split("\n")):
        text += f"        /*{16 * n:04x}*/  {line} ;  /* 0x0123456789abcdef */\n"
    self.object = self.write("cuda/kernels.cu.o", text)

  def tool(self, name):
    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
    os.chmod(self.write(name, '#!/bin/sh\ncat "$2"\n'), 0o755)

  def table(self, *args, code=0, tool="bin"):
    path = os.pathsep.join([self.path(tool), "/usr/bin", "/bin"])
    return self.run_script(self.path("dev/kernel_table.py"), *args, code=code, env={
        "PATH": path, "CUDA_HOME": self.path("nothing"), "PYTHONPATH": self.path("pip")})

  def test_steps_of_inner_loops(self):
    table = self.table("--count", self.path("cuda"))
    # 11 of 13 instructions and none of the second try; cycles: 2 x (64 + 64 + 32), 16 x 1, 2 x 2 x 1, 2 x 11,
    # 2 x ((2048 + 4096) x 2 / 128 + 2048 / 128 + 4)
    self.assertIn("| softmax, D 64, forward | 16384 | 11 | 0.2 | 1 | 3 | 320 | 16 | 4 | 22 | 232 | 168 | 1 |", table)
    self.assertIn("| softmax, D 64, dK dV | 8192 | 4 | 0.1 | 0 | 2 | 128 | 0 | 0 | 8 | 128 | 88 | 0 |", table)
    self.assertIn("| softmax, D 64, forward, mma.sync | 8192 | 6 | 0.1 | 0 | 2 | 16 | 0 | 0 | 6 | 32 | 15 | 0 |", table)
    self.assertIn("| softmax, D 64, forward, window | 16384 | 11 |", table)
    # two more that hide scores, on the unit for integers: 2 x 2 x 3 cycles
    self.assertIn("| softmax, D 64, forward, window, masked | 16384 | 13 | 0.2 | 1 | 3 | 320 | 16 | 12 | 26 |", table)
    self.assertIn("| softmax, D 64, forward | tensor | 3036 |", table)  # 4 x 64 x 16384 / 320 x 132 x 1.755e9
    self.assertEqual(table.count("\n| softmax"), 7)  # no bound for half a backward pass, nor for masked steps alone
    self.assertNotIn("dK", self.table("--count", self.object, "--only", "forward"))

  def test_instructions_beside_what_ptxas_said(self):
    self.write("cuda/kernels.cu.ptxas", "Compiling entry function 'attention_forward_hopper_kernel' for 'sm_90a'\n"
                                        "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                                        "Used 168 registers, 1024 bytes smem\n")
    self.write("cuda/kernels.cu.o", "Function : attention_forward_hopper_kernel\n /*0000*/ HGMMA.64x64x16 R1, R2 ;\n")
    table = self.table("--sass", self.path("cuda"), code=1)
    self.assertIn("| attention_forward_hopper_kernel | sm_90a | 168 | 8 | 1024 | 12 | 0 | 1 | 0 | 0 |", table)
    self.assertIn("1 kernels, 1 with spilled registers", table)  # local memory, although nothing is spilled
    self.assertIn("without tensor-core products, loads or stores by the copy engine: attention_forward", table)

  def test_where_the_disassembler_is_missing(self):
    self.write("pip/pip.py", "import sys\nsys.exit('no network')\n")
    self.table("--count", self.path("cuda"), code=2, tool="nothing")
    self.assert_error("cuobjdump", "offline", "CUDA toolkit", "no network")
    bin_folder = self.path("build/disassembler/nvidia/cu13/bin")
    self.write("pip/pip.py", "import os, shutil\n"
               f"os.makedirs({bin_folder!r})\nshutil.copy({self.path('bin/cuobjdump')!r}, {bin_folder!r})\n")
    self.assertIn("| softmax, D 64, forward |", self.table("--count", self.path("cuda"), tool="nothing"))
    self.write("pip/pip.py", "import sys\nsys.exit('not again')\n")
    self.table("--count", self.path("cuda"), tool="nothing")

  def test_bad_arguments(self):
    self.table("--count", "--only", "[", self.path("cuda"), code=2)
    self.assert_error("--only", '"["')
    self.table("--count", self.path("scripts"), code=1)
    self.assert_error("no objects", "make BACKEND=cuda")
