;;; qwen-companion-changes-fuzz-test.el --- Some random steps of undoing  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'ert)
(require 'changes-fuzz
         (expand-file-name "../fuzz/changes-fuzz"
                           (file-name-directory (macroexp-file-name))))

(ert-deftest qwen-companion-changes-fuzz-test-a-few ()
  "Files are right after each undo and redo; `make fuzz' takes many more steps."
  (changes-fuzz-run 1 12)
  (changes-fuzz-run-for-real 2 12))

(provide 'qwen-companion-changes-fuzz-test)
;;; qwen-companion-changes-fuzz-test.el ends here
