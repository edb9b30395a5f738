;;; qwen-companion-rescue-test.el --- Tests of kept texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-rescue-test-with (files &rest body)
  "Run BODY with FILES and a connected companion that follows the disk."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-proposals ,files
     (let ((qwen-companion-disk-written-functions
            '(qwen-companion-follow-file qwen-companion-review-file-written qwen-companion-rescue-file-written)))
       ;; Nothing is merged.
       (cl-letf (((symbol-function 'qwen-companion-backend-connected-p) #'ignore))
         (save-window-excursion
           ,@body)))))

(defun qwen-companion-rescue-test--propose (name proposed edits)
  "Let a CLI propose PROPOSED for NAME, and the user append EDITS.
Return the proposal."
  (let ((proposal (qwen-companion-test-propose name proposed)))
    (qwen-companion-test-edit proposal edits)
    proposal))

(defun qwen-companion-rescue-test--answer (proposal)
  "Let the user answer PROPOSAL in the terminal of a CLI that drops edits.
Return the buffer with the kept text, and what was said."
  (let ((said (qwen-companion-test-messages (qwen-companion-test-close proposal))))
    (list (car (qwen-companion-rescue-buffers)) said)))

(defun qwen-companion-rescue-test--write (name text)
  "Write TEXT to NAME, as a CLI does; return the messages about it."
  (qwen-companion-test-write name text)
  (qwen-companion-test-messages (qwen-companion-test-disk-event (expand-file-name name))))

(ert-deftest qwen-companion-rescue-test-edits-that-the-cli-drops ()
  "Said at once, offered when the CLI has written, applied as one change."
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (let ((file-buffer (find-file-noselect "a.txt")))
      (pcase-let ((`(,kept ,said)
                   (qwen-companion-rescue-test--answer
                    (qwen-companion-rescue-test--propose "a.txt" "two\n" "mine\n"))))
        (should (string-match-p "in the terminal, where qwen writes its own text without your edits" said))
        (with-current-buffer kept
          (should (qwen-companion-test-header-p "a\\.txt  answered in the terminal.*C-c C-c .*C-c C-k ")))
        ;; Nobody knows yet whether the CLI is going to write.
        (qwen-companion-test-refused "may be about to write" (qwen-companion-kept-apply))
        (should (string-match-p "M-x qwen-companion-kept-apply"
                                (qwen-companion-rescue-test--write "a.txt" "two\n")))
        (with-current-buffer file-buffer
          (qwen-companion-test-wait-for (equal "two\n" (buffer-string)))
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

(ert-deftest qwen-companion-rescue-test-a-text-that-the-cli-writes-goes ()
  "A CLI that takes the edits over leaves nothing to keep."
  (qwen-companion-rescue-test-with '(("a.txt" "one\r\n"))
    (let* ((proposal (qwen-companion-rescue-test--propose "a.txt" "two\r\n" "mine\n"))
           (said (qwen-companion-test-messages
                   (qwen-companion-test-close proposal :keeps-edits t))))
      (should-not (string-match-p "without your edits" said))
      (should (qwen-companion-rescue-buffers))
      (should (string-match-p
               "holds your edits"
               (qwen-companion-rescue-test--write "a.txt" "two\r\nmine\r\n")))
      (should-not (qwen-companion-rescue-buffers)))))

(ert-deftest qwen-companion-rescue-test-cli-gone-and-the-text-applied-by-key ()
  (dolist (name '("a.txt" "new/b.txt"))
    (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
      (let ((proposal (qwen-companion-test-propose name "two\n")))
        (qwen-companion-test-orphan proposal))
      (with-current-buffer (car (qwen-companion-rescue-buffers))
        (should (qwen-companion-test-header-p "  qwen disconnected  .*C-c C-c put into"))
        (call-interactively (key-binding (kbd "C-c C-c"))))
      (should (equal (expand-file-name name) (buffer-file-name (window-buffer))))
      (with-current-buffer (window-buffer)
        (should (equal "two\n" (buffer-string)))
        (should (buffer-modified-p))))))

(ert-deftest qwen-companion-rescue-test-other-changes-are-shown-beside-it ()
  "Later changes of the file or of its buffer are shown, not overwritten."
  (dolist (change (list (lambda () (qwen-companion-rescue-test--write "a.txt" "other\n"))
                        (lambda ()
                          (with-current-buffer (find-file-noselect "a.txt") (insert "unsaved\n")))))
    (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
      (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
        (qwen-companion-test-orphan proposal))
      (funcall change)
      (let* ((kept (car (qwen-companion-rescue-buffers)))
             (file-buffer (find-file-noselect "a.txt"))
             (before (qwen-companion-test-buffer-text file-buffer))
             compared)
        (cl-letf (((symbol-function 'ediff-buffers)
                   (lambda (&rest buffers) (setq compared buffers))))
          (qwen-companion-kept-apply))
        (should (equal (list file-buffer kept) (seq-take compared 2)))
        (should (buffer-live-p kept))
        (should (equal before (qwen-companion-test-buffer-text file-buffer)))))))

(ert-deftest qwen-companion-rescue-test-other-changes-that-ediff-cannot-show ()
  "The reason and the way out are said; the windows stay, and nothing is left."
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "t\0wo\n")))
      (qwen-companion-test-orphan proposal))
    (qwen-companion-rescue-test--write "a.txt" "other\n")
    (find-file-noselect "a.txt")
    (delete-other-windows)
    (switch-to-buffer (get-buffer-create "*terminal*"))
    (qwen-companion-test-refused "a\\.txt has other changes too.*NUL.*qwen-companion-kept-difference"
      (qwen-companion-kept-apply))
    (should (equal '("*terminal*") (qwen-companion-test-shown)))
    (should-not (cl-find-if (lambda (buffer) (string-match-p "\\`\\*ediff" (buffer-name buffer)))
                            (buffer-list)))
    (should (qwen-companion-rescue-buffers))))

(ert-deftest qwen-companion-rescue-test-which-text ()
  "The current one, the only one for the file visited here, or the only one."
  (qwen-companion-rescue-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (should-error (qwen-companion-kept-apply) :type 'user-error)
    (dolist (name '("a.txt" "b.txt"))
      (let ((proposal (qwen-companion-test-propose name "two\n")))
        (qwen-companion-test-orphan proposal)))
    (qwen-companion-test-refused "kept: [ab]\\.txt.*kept: [ab]\\.txt" (qwen-companion-kept-apply))
    (with-current-buffer (find-file-noselect "b.txt")
      (qwen-companion-kept-apply)
      (should (equal "two\n" (buffer-string))))
    (should (equal '("*qwen-companion kept: a.txt*")
                   (mapcar #'buffer-name (qwen-companion-rescue-buffers))))
    (qwen-companion-kept-discard)
    (should-not (qwen-companion-rescue-buffers))))

(defun qwen-companion-rescue-test--accept (proposed written)
  "Accept PROPOSED for a.txt, into which the CLI writes WRITTEN; nil: nothing.
Wait until the companion has found out, and return what it says."
  (let ((qwen-companion-disk--patience 0.3)
        (proposal (qwen-companion-test-propose "a.txt" proposed)))
    (qwen-companion-test-messages
      (qwen-companion-diff-accept proposal)
      (qwen-companion-test-deliver proposal)
      (when written
        (write-region written nil "a.txt" nil 'silent))
      (qwen-companion-test-wait-for (qwen-companion-test-written-p))
      (qwen-companion-test-wait-for (null (get-process "qwen-companion-diff"))))))

(ert-deftest qwen-companion-rescue-test-disk-differs-from-the-accepted-text ()
  "A message says so; the text is kept, and the difference is shown beside."
  (dolist (busy '(nil t))
    (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
      (cl-letf (((symbol-function 'qwen-companion-review--busy-p) (lambda () busy)))
        (delete-other-windows)
        (let* ((window (selected-window))
               (said (qwen-companion-rescue-test--accept "two\n" "three\n"))
               (difference (get-buffer "*qwen-companion difference: a.txt*")))
          (should (string-match-p "a\\.txt does not have the accepted text; .*\\*qwen-companion kept: a\\.txt\\*"
                                  said))
          (should (string-match-p "\\*qwen-companion difference: a\\.txt\\*" said))
          (with-current-buffer "*qwen-companion kept: a.txt*"
            (should (equal "two\n" (buffer-string))))
          (with-current-buffer difference
            (should (equal "--- accepted\n+++ on disk\n@@ -1 +1 @@\n-two\n+three\n"
                           (buffer-string)))
            (should (derived-mode-p 'diff-mode))
            (should buffer-read-only))
          (should (eq (not busy) (and (get-buffer-window difference) t)))
          (should (eq window (selected-window))))))))

(ert-deftest qwen-companion-rescue-test-the-cli-says-what-it-has-written ()
  "Another text than the accepted one is reported, and a key brings that.
What a formatter does right after the write is not."
  (dolist (exactly '(t nil))
    (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
      (let* ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
             (said (qwen-companion-test-messages
                     (qwen-companion-diff-accept proposal)
                     (qwen-companion-test-deliver proposal)
                     (write-region "three\n" nil "a.txt" nil 'silent)
                     (qwen-companion-proposal-on-written
                      (list :id (qwen-companion-proposal-id proposal) :exactly exactly))
                     (should (qwen-companion-test-written-p))
                     (qwen-companion-test-wait-for (null (get-process "qwen-companion-diff"))))))
        (if exactly
            (should-not (qwen-companion-rescue-buffers))
          (should (string-match-p "a\\.txt does not have the accepted text" said))
          (qwen-companion-kept-apply)
          (should (equal "two\n" (buffer-string))))))))

(ert-deftest qwen-companion-rescue-test-no-room-to-compare ()
  "On a full disk the CLI writes nothing, and the difference needs a file."
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (let (said)
      (cl-letf (((symbol-function 'qwen-companion-spool-write)
                 (lambda (&rest _)
                   (signal 'file-error '("Write error" "No space left on device" "/x")))))
        (setq said (qwen-companion-rescue-test--accept "two\n" "three\n")))
      (should (string-match-p "the proposed text is kept" said))
      (should (string-match-p "cannot compare .*No space left on device" said))
      (should-not (string-match-p "Error running timer" said))
      (should (= 1 (length (qwen-companion-rescue-buffers)))))))

(ert-deftest qwen-companion-rescue-test-accepted-and-written-late ()
  "The CLI has waited for an answer in its terminal: nothing is left to keep."
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (should (string-match-p "qwen has not written .*a\\.txt within 0 s" (qwen-companion-rescue-test--accept "two\n" nil)))
    (should (= 1 (length (qwen-companion-rescue-buffers))))
    (should-not (get-buffer "*qwen-companion difference: a.txt*"))
    (let ((watches (hash-table-count file-notify-descriptors)))
      (kill-buffer (car (qwen-companion-rescue-buffers)))
      (should (= (1- watches) (hash-table-count file-notify-descriptors)))
      (qwen-companion-rescue-test--accept "two\n" nil)
      (qwen-companion-proposal-end-all)
      (should (= (1- watches) (hash-table-count file-notify-descriptors))))
    (kill-buffer (car (qwen-companion-rescue-buffers)))
    (qwen-companion-rescue-test--accept "two\n" nil)
    (qwen-companion-test-said "a\\.txt holds the accepted text now"
      (write-region "two\n" nil "a.txt" nil 'silent)
      (qwen-companion-test-wait-for (null (qwen-companion-rescue-buffers))))))

(ert-deftest qwen-companion-rescue-test-compared-by-key-as-the-disk-is-now ()
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
          (compare (lambda ()
                     (qwen-companion-test-messages
                       (with-current-buffer "*qwen-companion kept: a.txt*"
                         (call-interactively (key-binding (kbd "C-c C-d"))))
                       (qwen-companion-test-wait-for (null (get-process "qwen-companion-diff")))))))
      (qwen-companion-test-orphan proposal)
      (let ((coding-system-for-write 'iso-latin-1-dos))
        (write-region "caf\u00e9\n" nil "a.txt" nil 'silent))
      (funcall compare)
      (with-current-buffer (window-buffer (get-buffer-window "*qwen-companion difference: a.txt*"))
        (should (string-suffix-p "-two\n+caf\u00e9\n" (buffer-string))))
      (write-region "two\n" nil "a.txt" nil 'silent)
      (should (string-match-p "already has that text" (funcall compare)))
      (delete-file "a.txt")
      (funcall compare)
      (with-current-buffer "*qwen-companion difference: a.txt*"
        (should (string-suffix-p "-two\n" (buffer-string)))))))

(defvar qwen-companion-rescue-test--touched nil
  "Non-nil once a hostile text was evaluated.")

(defvar diff-mode-hook)

(ert-deftest qwen-companion-rescue-test-hostile-difference-does-nothing ()
  (qwen-companion-rescue-test-with '(("a.txt" "one\n"))
    (let* ((touched nil)
           (enable-local-variables :all)
           (enable-local-eval t)
           (diff-mode-hook (list (lambda () (setq touched t))))
           (text "-*- eval: (setq qwen-companion-rescue-test--touched t) -*-\n\u202e\n"))
      (qwen-companion-rescue-test--accept "two\n" text)
      (with-current-buffer "*qwen-companion difference: a.txt*"
        (should (string-match-p (regexp-quote text)
                                (replace-regexp-in-string "^\\+" "" (buffer-string))))
        (font-lock-ensure)
        (should (eq 'left-to-right bidi-paragraph-direction)))
      (should-not touched)
      (should-not qwen-companion-rescue-test--touched))))

(provide 'qwen-companion-rescue-test)
;;; qwen-companion-rescue-test.el ends here
