;;; qwen-companion-worktrees-test.el --- Tests of the list of worktrees  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What rows say of odd worktrees, what is refused, and that many are shown
;; without looking at the disk again and again.  What git knows of them is
;; tested in tests/python/journal/test_worktree_list.py.

;;; Code:

(require 'qwen-companion-worktrees)
(require 'qwen-companion-test-helper)

(defun qwen-companion-worktrees-test--tree (name &rest more)
  "Return the worktree NAME below /p, with MORE keys and values."
  (append more (list :path (concat "/p/.qwen/worktrees/" name)
                     :branch (concat "worktree-" name) :head "1" :uncommitted 0 :ahead 0)))

(defmacro qwen-companion-worktrees-test--with (trees turns sessions &rest body)
  "Run BODY in a list of TREES and the main tree, with TURNS and SESSIONS."
  (declare (indent 3) (debug t))
  `(let ((turns ,turns) (sessions ,sessions))
     (cl-letf (((symbol-function 'qwen-companion-journal-turns) (lambda (&rest _) turns))
               ((symbol-function 'qwen-companion-journal-watch) #'ignore)
               ((symbol-function 'qwen-companion-journal-await)
                (lambda (_ payload)
                  (list :worktrees (list (qwen-companion-worktrees--tree
                                          (plist-get payload :tree))))))
               ((symbol-function 'qwen-companion-journal-ask) #'ignore)
               ((symbol-function 'qwen-companion-backend-sessions) (lambda () sessions)))
       (save-window-excursion
         (set-frame-size (selected-frame) 150 44)
         (with-temp-buffer
           (switch-to-buffer (current-buffer))
           (qwen-companion-worktrees-mode)
           (setq qwen-companion-worktrees--trees
                 (cons (list :path "/p" :branch "main" :head "1") ,trees))
           (qwen-companion-list--update)
           ,@body)))))

(defun qwen-companion-worktrees-test--line (name)
  "Go to the line of the worktree NAME, and return it."
  (goto-char (point-min))
  (re-search-forward (concat "^ *" (regexp-quote name) " "))
  (forward-line 0)
  (buffer-substring-no-properties (point) (line-end-position)))

(defun qwen-companion-worktrees-test--question ()
  "Answer no to the removal of the worktree at point, and return the question."
  (let (asked)
    (qwen-companion-test-answering (lambda (question) (setq asked question) nil)
      (condition-case nil
          (call-interactively #'qwen-companion-worktrees-remove)
        (quit asked)))))

(ert-deftest qwen-companion-worktrees-test-header-and-columns ()
  "The header shows the keys that fit, and 80 columns have all but the last prompt."
  (qwen-companion-worktrees-test--with
      (list (qwen-companion-worktrees-test--tree "feat" :files 3 :conflicts '("a.txt")))
      nil nil
    (set-frame-size (selected-frame) 80 24)
    (qwen-companion-list--update)
    (should (<= (+ tabulated-list-padding
                   (cl-loop for (_ width) across tabulated-list-format sum (1+ width)))
                80))
    (should (equal '("Conflicts" "Tokens")
                   (mapcar #'car (last (append tabulated-list-format nil) 2))))
    (qwen-companion-worktrees-test--line "feat")
    (should (qwen-companion-test-header-p "\\` 2 worktrees  RET changes  d difference  m merge"))
    (qwen-companion-test-refused "; d shows the diff"
      (call-interactively (key-binding (kbd "RET"))))
    (qwen-companion-worktrees-test--line "p")
    (should-not (qwen-companion-test-header-p "merge\\|remove"))))

(ert-deftest qwen-companion-worktrees-test-odd-worktrees ()
  "Each odd worktree is listed as such, and commands refuse it."
  (qwen-companion-worktrees-test--with
      (list (qwen-companion-worktrees-test--tree "two words" :files 3 :uncommitted 2 :inner 1)
            (qwen-companion-worktrees-test--tree "gone" :gone t)
            (qwen-companion-worktrees-test--tree "disk" :gone t :locked "on a disk")
            (qwen-companion-worktrees-test--tree "locked" :locked "mine" :files 0)
            (append '(:branch nil) (qwen-companion-worktrees-test--tree "loose" :files 0 :ahead 1))
            (append '(:head "") (qwen-companion-worktrees-test--tree "lost" :files 1))
            (list :path "/other/disk/far" :branch "far" :head "1"))
      nil nil
    (should (string-match-p "two words +[^ ].*two words +3"
                            (qwen-companion-worktrees-test--line "two words")))
    (should (equal "Remove worktree two words and lose uncommitted changes in 2 files, 1 commit of repositories in it that no remote has, all ignored files? "
                   (qwen-companion-worktrees-test--question)))
    (should (string-match-p "its directory is missing" (qwen-companion-worktrees-test--line "gone")))
    (should (equal "The directory of gone is gone; forget the worktree? "
                   (qwen-companion-worktrees-test--question)))
    (qwen-companion-test-refused "no longer exists"
      (call-interactively #'qwen-companion-worktrees-ask))
    (should (string-match-p "missing; locked" (qwen-companion-worktrees-test--line "disk")))
    (qwen-companion-test-refused "git worktree unlock"
      (call-interactively #'qwen-companion-worktrees-remove))
    (should (string-match-p "locked: mine" (qwen-companion-worktrees-test--line "locked")))
    (qwen-companion-test-refused "git worktree unlock"
      (call-interactively #'qwen-companion-worktrees-remove))
    (should (string-match-p "(no branch)" (qwen-companion-worktrees-test--line "loose")))
    (qwen-companion-test-refused "no branch"
      (call-interactively #'qwen-companion-worktrees-merge-branch))
    (should (string-match-p "worktree-lost" (qwen-companion-worktrees-test--line "lost")))
    (qwen-companion-test-refused "has no commit, or is gone"
      (call-interactively #'qwen-companion-worktrees-merge-branch))
    (qwen-companion-worktrees-test--line "loose")
    (should (equal "Remove worktree loose and lose 1 commit that may be on no branch, all ignored files? "
                   (qwen-companion-worktrees-test--question)))
    (qwen-companion-worktrees-test--line "p")
    (qwen-companion-test-refused "This is the main tree"
      (call-interactively #'qwen-companion-worktrees-remove))))

(ert-deftest qwen-companion-worktrees-test-only-those-who-live-there-are-ended ()
  "A CLI of the project that has entered a worktree is listed there, and not ended with it.
Buffers of the worktree that are not saved are told of."
  (qwen-companion-worktrees-test--with
      (list (qwen-companion-worktrees-test--tree "feat" :files 0))
      (list (list :who 'agent :source 'disk :session "" :root "/p/.qwen/worktrees/feat")
            (list :who 'agent :source 'hooks :cli "one" :root "/p/.qwen/worktrees/feat"))
      (list (list :id "one" :client "Qwen Code" :directory "/p")
            (list :id "two" :client "Gemini CLI" :directory "/p/.qwen/worktrees/feat/sub"))
    (should (string-match-p "Qwen Code \\+1" (qwen-companion-worktrees-test--line "feat")))
    (let ((unsaved (generate-new-buffer "unsaved")))
      (with-current-buffer unsaved
        (setq buffer-file-name "/p/.qwen/worktrees/feat/a.txt")
        (insert "x"))
      (should (equal "End Gemini CLI there.  Remove worktree feat and lose unsaved text in 1 buffer, all ignored files? "
                     (qwen-companion-worktrees-test--question)))
      (with-current-buffer unsaved
        (set-buffer-modified-p nil)
        (kill-buffer)))))

(ert-deftest qwen-companion-worktrees-test-conflicts-follow-what-is-saved ()
  "A save in the main tree has all that may conflict looked at again.
A list in no window looks at all of them once it is shown."
  (qwen-companion-worktrees-test--with
      (list (qwen-companion-worktrees-test--tree "feat" :files 1)
            (qwen-companion-worktrees-test--tree "same" :files 0))
      nil nil
    (rename-buffer "*qwen-companion worktrees*")
    (let ((list (current-buffer)) (asked nil))
      (cl-letf (((symbol-function 'qwen-companion-journal-ask)
                 (lambda (_method payload callback)
                   (push (plist-get payload :tree) asked)
                   (funcall callback nil))))
        (cl-flet ((save (name)
                    (setq asked nil)
                    (with-temp-buffer
                      (setq buffer-file-name name)
                      (run-hooks 'after-save-hook)
                      (setq buffer-file-name nil))
                    (sort (copy-sequence asked) #'string<)))
          (should (equal '("/p" "/p/.qwen/worktrees/feat") (save "/p/a.txt")))
          (should (equal '("/p/.qwen/worktrees/same") (save "/p/.qwen/worktrees/same/a.txt")))
          (should-not (save "/elsewhere/a.txt"))
          (should-not (save "/ssh:nowhere:/p/a.txt"))
          (with-temp-buffer
            (switch-to-buffer (current-buffer))
            (should-not (save "/p/a.txt"))
            (switch-to-buffer list)
            (qwen-companion-list--update)
            (should (member nil asked))))))))

(ert-deftest qwen-companion-worktrees-test-many-are-shown-soon ()
  "Each directory is looked up once, however many turns and CLIs it has."
  (let ((names (mapcar #'number-to-string (number-sequence 1 20)))
        (looked 0)
        (true-name (symbol-function 'file-truename)))
    (cl-flet ((path (name) (concat "/p/.qwen/worktrees/" name)))
      (cl-letf (((symbol-function 'file-truename)
                 (lambda (&rest arguments)
                   (cl-incf looked)
                   ;; It calls itself.
                   (cl-letf (((symbol-function 'file-truename) true-name))
                     (apply true-name arguments)))))
        (qwen-companion-worktrees-test--with
            (mapcar #'qwen-companion-worktrees-test--tree names)
            (mapcar (lambda (name)
                      (list :who 'agent :source 'hooks :cli "gone" :root (path name)
                            :prompt (concat "Prompt " name)))
                    (append names names names))
            (mapcar (lambda (name)
                      (list :id name :client "Qwen Code" :directory (path name)))
                    names)
          ;; The main tree too.
          (should (<= looked 21))
          (should (string-match-p "Qwen Code.*Prompt 20"
                                  (qwen-companion-worktrees-test--line "20"))))))))

(provide 'qwen-companion-worktrees-test)
;;; qwen-companion-worktrees-test.el ends here
