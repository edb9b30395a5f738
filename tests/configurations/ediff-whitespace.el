;;; ediff-whitespace.el --- Ediff without white space  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq ediff-diff-options "-w"
      ediff-actual-diff-options "-w"
      diff-switches "-c")

;;; ediff-whitespace.el ends here
