;;; qwen-companion-review-fuzz-test.el --- Some random steps of reviews  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'ert)
(require 'reviews-fuzz
         (expand-file-name "../fuzz/reviews-fuzz"
                           (file-name-directory (macroexp-file-name))))

(ert-deftest qwen-companion-review-fuzz-test-invariants ()
  "The invariants hold after each random step; `make fuzz' takes many more."
  (pcase-dolist (`(,seed . ,steps) reviews-fuzz-seeds)
    (reviews-fuzz-run seed steps)))

(provide 'qwen-companion-review-fuzz-test)
;;; qwen-companion-review-fuzz-test.el ends here
