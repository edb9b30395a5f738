;;; ediff-careful.el --- Ediff read-only, quiet, with long help, and that asks  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq ediff-make-buffers-readonly-at-startup t
      ediff-auto-refine 'off
      ediff-use-long-help-message t
      ediff-keep-variants nil
      ediff-show-clashes-only t
      ediff-highlight-all-diffs nil
      ediff-autostore-merges nil)

;;; ediff-careful.el ends here
