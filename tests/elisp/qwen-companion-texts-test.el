;;; qwen-companion-texts-test.el --- Tests of comparing and changing texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-texts-test--buffer (text)
  "Return a new buffer with TEXT."
  (with-current-buffer (generate-new-buffer " *texts test*")
    (insert text)
    (current-buffer)))

(defun qwen-companion-texts-test--compare (old new)
  "Return what comparing the texts OLD and NEW gives."
  (let ((answer 'none))
    (qwen-companion-texts-compare (qwen-companion-texts-test--buffer old)
                                  (qwen-companion-texts-test--buffer new)
                                  (lambda (hunks) (setq answer hunks)))
    (should (eq answer 'none))
    (qwen-companion-test-wait-for (not (eq answer 'none)))
    answer))

(defun qwen-companion-texts-test--merge (base mine theirs)
  "Merge the texts BASE (or nil), MINE and THEIRS.
Return (RESULT MERGED), the text it makes of MINE and the answer."
  (let* ((answer 'none)
         (mine-buffer (qwen-companion-texts-test--buffer mine))
         (theirs-buffer (qwen-companion-texts-test--buffer theirs)))
    (qwen-companion-texts-merge base mine-buffer theirs-buffer
                                '("mine" "base" "theirs")
                                (lambda (merged) (setq answer merged)))
    (qwen-companion-test-wait-for (not (eq answer 'none)))
    (and answer
         (with-current-buffer mine-buffer
           (qwen-companion-texts-apply answer theirs-buffer)
           (list (buffer-string) answer)))))

(ert-deftest qwen-companion-texts-test-the-real-process-compares-and-merges ()
  (qwen-companion-test-with-process
    (qwen-companion-mode 1)
    (qwen-companion-test-wait-for (qwen-companion-backend-connected-p))
    (should (equal '((2 1 2 1) (4 0 4 1))
                   (qwen-companion-texts-test--compare "a\nb\nc\n" "a\nB\nc\nd")))
    (should-not (qwen-companion-texts-test--compare "a\n" "a\n"))
    (should (equal "a\nb\nC\n"
                   (car (qwen-companion-texts-test--merge nil "a\nB\nc\n" "a\nb\nC\n"))))
    (pcase-let ((`(,text ,merged)
                 (qwen-companion-texts-test--merge "a\nb\nc\n" "A\nb\nc\n" "a\nb\nC\n")))
      (should (equal "A\nb\nC\n" text))
      (should (= 0 (qwen-companion-texts-merged-conflicts merged))))
    (pcase-let ((`(,text ,merged)
                 (qwen-companion-texts-test--merge "a\n" "b" "c\n")))
      (should (equal "<<<<<<< mine\nb\n||||||| base\na\n=======\nc\n>>>>>>> theirs\n"
                     text))
      (should (= 1 (qwen-companion-texts-merged-conflicts merged))))))

(provide 'qwen-companion-texts-test)
;;; qwen-companion-texts-test.el ends here
