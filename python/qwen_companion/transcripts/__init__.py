# SPDX-License-Identifier: GPL-3.0-or-later
"""What Qwen Code records of conversations: one file each, a JSON object a line."""
