;;; pop-up-frames.el --- Buffers in frames of their own  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq pop-up-frames t)

;;; pop-up-frames.el ends here
