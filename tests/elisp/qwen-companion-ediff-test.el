;;; qwen-companion-ediff-test.el --- Tests of reviews with Ediff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-ediff-test-with (files &rest body)
  "Run BODY with FILES and a connected companion, in an orderly frame."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((qwen-companion-diff-arrival 'command)
             (inhibit-message t))
         (set-frame-size (selected-frame) 120 40)
         (save-window-excursion
           (delete-other-windows)
           (switch-to-buffer (get-buffer-create "*terminal*"))
           ,@body)))))

(defun qwen-companion-ediff-test--show (proposal &optional select)
  "Show PROPOSAL as by itself, or with SELECT as by command."
  (qwen-companion-diff--display proposal select))

(defun qwen-companion-ediff-test--buffers ()
  "Return the names of the buffers shown in the frame, in order."
  (mapcar (lambda (window) (buffer-name (window-buffer window)))
          (window-list nil 'no-minibuffer (frame-first-window))))

(ert-deftest qwen-companion-ediff-test-both-sides-and-the-terminal ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((selected (selected-window)))
      (qwen-companion-ediff-test--show (qwen-companion-test-propose "a.txt" "two\n"))
      (should (eq selected (selected-window)))
      (should (equal '("*qwen-companion disk: a.txt*"
                       "*qwen-companion proposal: a.txt*"
                       "*Ediff Control Panel*"
                       "*terminal*")
                     (qwen-companion-ediff-test--buffers))))))

(ert-deftest qwen-companion-ediff-test-belongs-beside-its-own-terminal ()
  "Where that is not known, beside any that was started in the project."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let* ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
           (here (get-buffer-create "*here*"))
           (own (get-buffer-create "*own*"))
           (process (make-process :name "own" :buffer own :noquery t
                                  :command '("sleep" "1000")))
           (qwen-companion-backend--sessions
            (list (list :id "session-1" :ancestors (list (process-id process)))
                  (list :id "session-2"))))
      (with-current-buffer here
        (setq qwen-companion-terminal-directory default-directory))
      (with-current-buffer own
        (setq default-directory "/somewhere/"))
      (unwind-protect
          (should (equal (list own)
                         (qwen-companion-ediff--terminals proposal)))
        (delete-process process))
      (dolist (session '("session-1" "session-2" "gone"))
        (setf (qwen-companion-proposal-session proposal) session)
        (should (equal (list here)
                       (qwen-companion-ediff--terminals proposal)))))))

(ert-deftest qwen-companion-ediff-test-windows-come-back ()
  "Whatever ends the review, the frame looks as before."
  (dolist (end (list #'qwen-companion-diff-accept
                     #'qwen-companion-diff-reject
                     #'qwen-companion-diff-bury
                     #'qwen-companion-diff-end-all
                     (lambda ()
                       (qwen-companion-diff-on-close
                        (list :id (qwen-companion-proposal-id
                                   (car (qwen-companion-diff-proposals))))))
                     (lambda ()
                       (kill-buffer (qwen-companion-proposal-buffer
                                     (car (qwen-companion-diff-proposals)))))))
    (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*other*"))
      (let ((before (current-window-configuration))
            (proposal (qwen-companion-test-propose "a.txt" "two\n")))
        (qwen-companion-ediff-test--show proposal)
        (should (= 4 (length (qwen-companion-ediff-test--buffers))))
        (funcall end)
        (should (equal '("*terminal*" "*other*")
                       (qwen-companion-ediff-test--buffers)))
        (should (compare-window-configurations
                 before (current-window-configuration)))
        (should-not ediff-session-registry)
        (should-not qwen-companion-ediff--configurations)))))

(ert-deftest qwen-companion-ediff-test-dedicated-and-side-windows ()
  "A terminal that is dedicated, or in a side window, stays where it is."
  (dolist (prepare
           (list (lambda () (set-window-dedicated-p (selected-window) t))
                 (lambda ()
                   (switch-to-buffer "*scratch*")
                   (select-window
                    (display-buffer-in-side-window
                     (get-buffer "*terminal*") '((side . right)))))))
    (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
      (funcall prepare)
      (let ((before (qwen-companion-ediff-test--buffers))
            (window (selected-window))
            (dedicated (window-dedicated-p)))
        (qwen-companion-ediff-test--show
         (qwen-companion-test-propose "a.txt" "two\n"))
        (should (eq window (selected-window)))
        (should (equal "*terminal*" (buffer-name (window-buffer window))))
        (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
        (qwen-companion-diff-reject)
        (should (equal before (qwen-companion-ediff-test--buffers)))
        (should (equal dedicated (window-dedicated-p)))))))

(ert-deftest qwen-companion-ediff-test-small-frame ()
  "Where there is no room for both, the review has the frame for a while."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (set-frame-size (selected-frame) 80 10)
    (qwen-companion-ediff-test--show (qwen-companion-test-propose "a.txt" "two\n"))
    (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
    (qwen-companion-diff-reject)
    (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers)))))

(ert-deftest qwen-companion-ediff-test-keys-of-the-panel ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (qwen-companion-ediff-test--show
     (qwen-companion-test-propose "a.txt" "two\n") t)
    (should (equal "*Ediff Control Panel*" (buffer-name)))
    (should (eq #'qwen-companion-diff-bury (key-binding "q")))
    (should (eq #'qwen-companion-diff-accept (key-binding (kbd "C-c C-c"))))
    (should (eq #'qwen-companion-diff-reject (key-binding (kbd "C-c C-k"))))
    (should (eq #'ediff-next-difference (key-binding "n")))
    (should-not (eq #'qwen-companion-diff-bury (lookup-key ediff-mode-map "q")))
    (dolist (side '("proposal" "disk"))
      (with-current-buffer (format "*qwen-companion %s: a.txt*" side)
        (should (eq #'qwen-companion-diff-accept (key-binding (kbd "C-c C-c"))))
        (should (eq #'qwen-companion-diff-reject (key-binding (kbd "C-c C-k"))))))))

(ert-deftest qwen-companion-ediff-test-buried-review-comes-back-with-its-edits ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-ediff-test--show proposal)
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (goto-char (point-max))
        (insert "mine\n"))
      (qwen-companion-diff-bury)
      (should (equal (list proposal) (qwen-companion-diff-proposals)))
      (should-not (qwen-companion-test-sent 'outcome))
      (qwen-companion-diff-open)
      (should (equal "*Ediff Control Panel*" (buffer-name (window-buffer))))
      (qwen-companion-diff-accept)
      (should (equal "two\nmine\n"
                     (plist-get (car (qwen-companion-test-sent 'outcome))
                                :text))))))

(ert-deftest qwen-companion-ediff-test-another-buffer-beside-it-stays ()
  "In the window that stayed visible, what the user has switched to."
  (dolist (end (list #'qwen-companion-diff-accept #'qwen-companion-diff-bury))
    (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*other*"))
      (qwen-companion-ediff-test--show
       (qwen-companion-test-propose "a.txt" "two\n"))
      (switch-to-buffer (get-buffer-create "*second terminal*"))
      (funcall end)
      (should (equal '("*second terminal*" "*other*")
                     (qwen-companion-ediff-test--buffers)))
      (should (equal "*second terminal*" (buffer-name (window-buffer)))))))

(ert-deftest qwen-companion-ediff-test-windows-of-the-user-stay ()
  "What the user has put on the screen instead of the review is not undone."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (qwen-companion-ediff-test--show (qwen-companion-test-propose "a.txt" "two\n"))
    (delete-other-windows)
    (switch-to-buffer (get-buffer-create "*other*"))
    (qwen-companion-diff-accept)
    (should (equal '("*other*") (qwen-companion-ediff-test--buffers)))
    (should-not qwen-companion-ediff--configurations)))

(ert-deftest qwen-companion-ediff-test-opening-again-is-the-same-session ()
  "Also after the windows were changed by hand."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-ediff-test--show proposal)
      (dolist (change (list #'ignore
                            (lambda ()
                              (select-window (get-buffer-window "*terminal*"))
                              (delete-other-windows))))
        (funcall change)
        (qwen-companion-diff-open)
        (should (equal "*Ediff Control Panel*" (buffer-name (window-buffer))))
        (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
        (should (= 1 (length ediff-session-registry))))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers)))
      (should-not ediff-session-registry))))

(ert-deftest qwen-companion-ediff-test-dropping-a-change ()
  "Ediff's own copying takes a change of the proposal back."
  (qwen-companion-ediff-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n"))
    (qwen-companion-ediff-test--show
     (qwen-companion-test-propose "a.txt" "ONE\n2\n3\n4\n5\n6\nSEVEN\n") t)
    (ediff-copy-A-to-B 1)
    (qwen-companion-diff-accept)
    (should (equal "1\n2\n3\n4\n5\n6\nSEVEN\n"
                   (plist-get (car (qwen-companion-test-sent 'outcome)) :text)))))

(ert-deftest qwen-companion-ediff-test-settings-and-hooks-of-the-user ()
  "The user's hooks run; settings and hooks are as before afterwards."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let* (ran
           (ediff-startup-hook (list (lambda () (push 'startup ran))))
           (ediff-quit-hook (append ediff-quit-hook
                                    (list (lambda () (push 'quit ran)))))
           (ediff-window-setup-function #'ediff-setup-windows-multiframe)
           (ediff-split-window-function #'split-window-vertically)
           (settings (lambda ()
                       (mapcar #'default-value
                               '(ediff-mode-hook ediff-startup-hook
                                 ediff-quit-hook ediff-cleanup-hook
                                 ediff-before-setup-windows-hook
                                 ediff-window-setup-function
                                 ediff-split-window-function
                                 ediff-keep-variants
                                 ediff-brief-help-message-function
                                 ediff-long-help-message-function))))
           (before (funcall settings)))
      (qwen-companion-ediff-test--show (qwen-companion-test-propose "a.txt" "two\n"))
      (qwen-companion-diff-reject)
      (should (equal '(quit startup) ran))
      (should (equal before (funcall settings))))))

(ert-deftest qwen-companion-ediff-test-killed-panel-puts-aside ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-ediff-test--show proposal)
      (kill-buffer "*Ediff Control Panel*")
      (should (equal (list proposal) (qwen-companion-diff-proposals)))
      (should-not ediff-session-registry)
      (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers)))
      (qwen-companion-diff-open)
      (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers))))))

(ert-deftest qwen-companion-ediff-test-comes-again-when-its-frame-is-gone ()
  "By itself and with its edits; one that is put aside stays there."
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
          (qwen-companion-diff-arrival 'now))
      (qwen-companion-ediff-test--show proposal)
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (goto-char (point-max))
        (insert "mine\n"))
      ;; In batch there is one frame only: all but the end of it.
      (qwen-companion-diff-frame-deleted nil)
      (should (qwen-companion-diff--shown))
      (qwen-companion-diff-frame-deleted (selected-frame))
      (should-not (qwen-companion-diff--shown))
      (should-not ediff-session-registry)
      (should-not qwen-companion-ediff--configurations)
      (qwen-companion-test-wait-for (qwen-companion-diff--shown))
      (should (equal "two\nmine\n" (qwen-companion-diff--text proposal)))
      (qwen-companion-diff-bury)
      (qwen-companion-diff-frame-deleted (selected-frame))
      (should-not qwen-companion-diff--timer)
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers))))))

(ert-deftest qwen-companion-ediff-test-new-file ()
  (qwen-companion-ediff-test-with nil
    (qwen-companion-ediff-test--show
     (qwen-companion-test-propose "new/a.txt" "two\n"))
    (with-current-buffer "*qwen-companion disk: a.txt*"
      (should (zerop (buffer-size)))
      (should (string-match-p "not on disk yet" header-line-format)))
    (should-not (file-exists-p "new"))
    (qwen-companion-diff-reject)
    (should-not (file-exists-p "new"))))

(ert-deftest qwen-companion-ediff-test-opens-by-itself-one-at-a-time ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((qwen-companion-diff-arrival 'now))
      (qwen-companion-test-propose "a.txt" "two\n")
      (qwen-companion-test-wait-for
       (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (qwen-companion-test-propose "b.txt" "two\n")
      (should (qwen-companion-diff--busy-p))
      (qwen-companion-diff-reject "a.txt")
      (qwen-companion-test-wait-for
       (get-buffer-window "*qwen-companion proposal: b.txt*"))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-ediff-test--buffers)))
      (should-not qwen-companion-diff--timer))))

(ert-deftest qwen-companion-ediff-test-does-not-open-while-busy ()
  (qwen-companion-ediff-test-with '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (dolist (busy '(executing-kbd-macro defining-kbd-macro track-mouse))
        (cl-progv (list busy) (list t)
          (qwen-companion-diff--show-next)
          (should-not (qwen-companion-proposal-seen proposal))))
      (cl-letf (((symbol-function 'active-minibuffer-window)
                 (lambda () (minibuffer-window))))
        (qwen-companion-diff--show-next)
        (should-not (qwen-companion-proposal-seen proposal)))
      (qwen-companion-diff--show-next)
      (should (qwen-companion-proposal-seen proposal)))))

(provide 'qwen-companion-ediff-test)
;;; qwen-companion-ediff-test.el ends here
