;;; qwen-companion-embark-test.el --- Tests of actions with Embark  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The real Embark acts on what is at point in our lists and on candidates of
;; completion.  Skipped where scripts/setup could not download it.

;;; Code:

(require 'qwen-companion-changes-test-helper)

(declare-function embark-act "ext:embark" (&optional arg))
(declare-function embark--targets "ext:embark" ())

(defun qwen-companion-embark-test--targets ()
  "Return our targets and files at point for Embark, as a list of (TYPE . NAME)."
  (cl-loop for target in (embark--targets)
           for type = (plist-get target :type)
           when (memq type '(qwen-companion-session qwen-companion-proposal
                             qwen-companion-change file))
           collect (cons type (plist-get target :target))))

(defun qwen-companion-embark-test--act (keys)
  "Act with KEYS on the target at point; return the answers to questions."
  (let* ((map (make-sparse-keymap))
         (overriding-terminal-local-map map)
         (answers nil)
         (minibuffer-exit-hook (list (lambda () (push (minibuffer-contents) answers)))))
    (define-key map (kbd "<f5>") #'embark-act)
    (execute-kbd-macro (kbd (concat "<f5> " keys)))
    (nreverse answers)))

(ert-deftest qwen-companion-embark-test-clis ()
  "It acts on the CLI at point in the list, and leaves questions to the user."
  (skip-unless (qwen-companion-test-load 'embark))
  (let* ((process (start-process "sleep" nil "sleep" "600"))
         (name (format "Qwen Code %d" (process-id process)))
         (session (list :id "a" :client "Qwen Code" :pid (process-id process)))
         (terminal (generate-new-buffer "terminal")))
    (set-process-query-on-exit-flag process nil)
    (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer) (lambda (_session) terminal)))
      (qwen-companion-test-with-sessions (list session)
        (qwen-companion-sessions)
        (qwen-companion-test-first-row)
        (unwind-protect
            (progn
              (should (equal `((qwen-companion-session . ,name))
                             (qwen-companion-embark-test--targets)))
              (should (equal '("no") (qwen-companion-embark-test--act "k no RET")))
              (should (process-live-p process))
              (should (equal '("yes") (qwen-companion-embark-test--act "k yes RET")))
              (while (process-live-p process)
                (accept-process-output process))
              (qwen-companion-embark-test--act "RET")
              (should (eq terminal (window-buffer))))
          (delete-process process)
          (qwen-companion-list-close 'qwen-companion-sessions-mode)
          (kill-buffer terminal))))))

(ert-deftest qwen-companion-embark-test-proposals ()
  "It acts on the proposal at point in the list, though there are several."
  (skip-unless (qwen-companion-test-load 'embark))
  (qwen-companion-test-with-proposals '(("a.txt" "1\n") ("b.txt" "1\n"))
    (qwen-companion-test-with-state 'ready
      (save-window-excursion
        (let ((one (qwen-companion-test-propose "a.txt" "2\n"))
              (other (qwen-companion-test-propose "b.txt" "2\n")))
          (unwind-protect
              (progn
                (qwen-companion-diffs)
                (qwen-companion-test-go-to "b.txt")
                (should (string-search
                         "b.txt (" (cdr (assq 'qwen-companion-proposal
                                              (qwen-companion-embark-test--targets)))))
                (qwen-companion-embark-test--act "k")
                (should (equal (list one) (qwen-companion-proposals)))
                (should-not (memq other (qwen-companion-proposals))))
            (qwen-companion-list-close 'qwen-companion-diffs-mode)))))))

(ert-deftest qwen-companion-embark-test-changes ()
  "It acts on the turn, file or hunk at point, and on the file as on any other."
  (skip-unless (qwen-companion-test-load 'embark))
  (qwen-companion-changes-test-with '(("a.txt" "one\ntwo\n"))
    (qwen-companion-changes-test-turn "1" '(("a.txt" "one\nTWO\n")))
    (qwen-companion-changes)
    (qwen-companion-changes-items-update)
    (goto-char (point-min))
    (let ((file (cons 'file (expand-file-name "a.txt"))))
      (search-forward "Prompt of 1")
      (should (equal '(qwen-companion-change) (mapcar #'car (qwen-companion-embark-test--targets))))
      (search-forward "a.txt")
      (should (member file (qwen-companion-embark-test--targets)))
      (qwen-companion-changes-toggle-fold)
      (search-forward "TWO")
      (let ((targets (qwen-companion-embark-test--targets)))
        (should (assq 'qwen-companion-change targets))
        (should (member file targets)))
      (qwen-companion-embark-test--act "RET")
      (should (equal "a.txt" (qwen-companion-test-selected)))
      (should (equal 2 (with-current-buffer (window-buffer) (line-number-at-pos)))))))

(provide 'qwen-companion-embark-test)
;;; qwen-companion-embark-test.el ends here
