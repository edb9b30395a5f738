;;; qwen-companion-kept-test.el --- Tests of kept texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-kept-test-with (files &rest body)
  "Run BODY with FILES and a connected companion that follows the disk."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((qwen-companion-diff-arrival 'command)
             (inhibit-message t)
             (qwen-companion-disk-written-functions
              '(qwen-companion-diff-file-written
                qwen-companion-kept-file-written)))
         (save-window-excursion
           ,@body)))))

(defun qwen-companion-kept-test--propose (name proposed edits)
  "Let a CLI propose PROPOSED for NAME, and the user append EDITS.
Return the proposal."
  (let ((proposal (qwen-companion-test-propose name proposed)))
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (goto-char (point-max))
      (insert edits))
    proposal))

(defun qwen-companion-kept-test--answer (proposal)
  "Let the user answer PROPOSAL in the terminal of a CLI that drops edits.
Return the buffer with the kept text, and what was said."
  (let ((said (qwen-companion-test-messages
                (qwen-companion-diff-on-close
                 (list :id (qwen-companion-proposal-id proposal))))))
    (list (car (qwen-companion-kept-buffers)) said)))

(defun qwen-companion-kept-test--write (name text)
  "Write TEXT to NAME, as a CLI does; return what is said about it."
  (let ((coding-system-for-write 'utf-8-unix))
    (write-region text nil name nil 'silent))
  (qwen-companion-test-messages
    (mapc #'qwen-companion-disk--check qwen-companion-disk--writes)))

(ert-deftest qwen-companion-kept-test-edits-that-the-cli-drops ()
  "Said at once, offered when the CLI has written, applied as one change."
  (qwen-companion-kept-test-with '(("a.txt" "one\n"))
    (let ((file-buffer (find-file-noselect "a.txt")))
      (pcase-let ((`(,kept ,said)
                   (qwen-companion-kept-test--answer
                    (qwen-companion-kept-test--propose "a.txt" "two\n" "mine\n"))))
        (should (string-match-p "in the terminal, where qwen writes its own text without your edits" said))
        (with-current-buffer kept
          (should (string-match-p "C-c C-c .*C-c C-k .*a\\.txt: answered in the terminal"
                                  header-line-format)))
        ;; Nobody knows yet whether the CLI is going to write.
        (should (string-match-p
                 "may be about to write"
                 (cadr (should-error (qwen-companion-kept-apply) :type 'user-error))))
        (should (string-match-p "M-x qwen-companion-kept-apply"
                                (qwen-companion-kept-test--write "a.txt" "two\n")))
        (with-current-buffer file-buffer
          (should (equal "two\n" (buffer-string)))
          (buffer-enable-undo))
        (qwen-companion-kept-apply)
        (should-not (buffer-live-p kept))
        (should (eq file-buffer (window-buffer)))
        (with-current-buffer file-buffer
          (should (equal "two\nmine\n" (buffer-string)))
          (should (buffer-modified-p))
          (primitive-undo 1 (cdr buffer-undo-list))
          (should (equal "two\n" (buffer-string))))
        (should (equal "two\n" (qwen-companion-test-file-text "a.txt")))))))

(ert-deftest qwen-companion-kept-test-a-text-that-the-cli-writes-goes ()
  "A CLI that takes the edits over leaves nothing to keep."
  (qwen-companion-kept-test-with '(("a.txt" "one\r\n"))
    (let* ((proposal (qwen-companion-kept-test--propose
                      "a.txt" "two\r\n" "mine\n"))
           (said (qwen-companion-test-messages
                   (qwen-companion-diff-on-close
                    (list :id (qwen-companion-proposal-id proposal)
                          :keeps-edits t)))))
      (should-not (string-match-p "without your edits" said))
      (should (qwen-companion-kept-buffers))
      (should (string-match-p
               "holds your edits"
               (qwen-companion-kept-test--write "a.txt" "two\r\nmine\r\n")))
      (should-not (qwen-companion-kept-buffers)))))

(ert-deftest qwen-companion-kept-test-cli-gone-and-the-text-applied-by-key ()
  (dolist (name '("a.txt" "new/b.txt"))
    (qwen-companion-kept-test-with '(("a.txt" "one\n"))
      (let ((proposal (qwen-companion-test-propose name "two\n")))
        (qwen-companion-diff-on-orphan
         (list :id (qwen-companion-proposal-id proposal))))
      (with-current-buffer (car (qwen-companion-kept-buffers))
        (should (string-match-p "qwen has gone before it could write" header-line-format))
        (call-interactively (key-binding (kbd "C-c C-c"))))
      (should (equal (expand-file-name name)
                     (buffer-file-name (window-buffer))))
      (with-current-buffer (window-buffer)
        (should (equal "two\n" (buffer-string)))
        (should (buffer-modified-p))))))

(ert-deftest qwen-companion-kept-test-other-changes-are-shown-beside-it ()
  "In the file since, or in its buffer: neither is overwritten."
  (dolist (change (list (lambda ()
                          (qwen-companion-kept-test--write "a.txt" "other\n"))
                        (lambda ()
                          (with-current-buffer (find-file-noselect "a.txt")
                            (insert "unsaved\n")))))
    (qwen-companion-kept-test-with '(("a.txt" "one\n"))
      (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
        (qwen-companion-diff-on-orphan
         (list :id (qwen-companion-proposal-id proposal))))
      (funcall change)
      (let* ((kept (car (qwen-companion-kept-buffers)))
             (file-buffer (find-file-noselect "a.txt"))
             (before (with-current-buffer file-buffer (buffer-string)))
             compared)
        (cl-letf (((symbol-function 'ediff-buffers)
                   (lambda (&rest buffers) (setq compared buffers))))
          (qwen-companion-kept-apply))
        (should (equal (list file-buffer kept) compared))
        (should (buffer-live-p kept))
        (should (equal before (with-current-buffer file-buffer (buffer-string))))))))

(ert-deftest qwen-companion-kept-test-which-text ()
  "The current one, the only one for the file visited here, or the only one."
  (qwen-companion-kept-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (should-error (qwen-companion-kept-apply) :type 'user-error)
    (dolist (name '("a.txt" "b.txt"))
      (let ((proposal (qwen-companion-test-propose name "two\n")))
        (qwen-companion-diff-on-orphan
         (list :id (qwen-companion-proposal-id proposal)))))
    (should (string-match-p
             "kept: [ab]\\.txt.*kept: [ab]\\.txt"
             (cadr (should-error (qwen-companion-kept-apply) :type 'user-error))))
    (with-current-buffer (find-file-noselect "b.txt")
      (qwen-companion-kept-apply)
      (should (equal "two\n" (buffer-string))))
    (should (equal '("*qwen-companion kept: a.txt*")
                   (mapcar #'buffer-name (qwen-companion-kept-buffers))))
    (qwen-companion-kept-discard)
    (should-not (qwen-companion-kept-buffers))))

(provide 'qwen-companion-kept-test)
;;; qwen-companion-kept-test.el ends here
