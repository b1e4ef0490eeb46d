"""The limits that run.py sets speeds beside: the card is known by what the driver calls it and by its memory."""

import unittest

from run import card_of

GIB = 2**30


class Cards(unittest.TestCase):
    def test_names_as_drivers_have_them(self):
        for name, memory, bandwidth, bf16 in (
                ("NVIDIA A100-SXM4-40GB", 39.39, 1555, 312), ("NVIDIA A100-PCIE-40GB", 39.39, 1555, 312),
                ("NVIDIA A100-SXM4-80GB", 79.15, 2039, 312), ("NVIDIA A100 80GB PCIe", 79.15, 1935, 312),
                ("NVIDIA H100 80GB HBM3", 79.1, 3350, 989), ("NVIDIA H100 PCIe", 79.1, 2000, 756), ("NVIDIA H200", 139.8, 4800, 989)):
            card = card_of({"device": name, "memory": int(memory * GIB)})
            self.assertEqual((card["bandwidth_gbs"], card["bf16_tflops"]), (bandwidth, bf16), name)

    def test_others_have_no_limits(self):
        for name, memory in (("NVIDIA GH200 480GB", 94.5), ("NVIDIA A100-SXM4-40GB", 19.5), ("Emulated GPU", 2), ("NVIDIA A10", 22.5)):
            self.assertIsNone(card_of({"device": name, "memory": int(memory * GIB)}), name)
        self.assertIsNone(card_of({}))


if __name__ == "__main__":
    unittest.main()
