;;; qwen-companion-roots-test.el --- Tests of which projects are open  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)
(require 'term)

(defun qwen-companion-roots-test--sent ()
  "Return the roots sent last, relative to `default-directory' where below it."
  (let ((here (directory-file-name default-directory)))
    (mapcar (lambda (root)
              (if (qwen-companion-untrusted-in-directory-p root here) (file-relative-name root here) root))
            (plist-get (car (last (qwen-companion-test-sent 'roots))) :roots))))

(defmacro qwen-companion-roots-test--with-files (files &rest body)
  "Run BODY with FILES in a new project, as if the mode were on.
Only what BODY opens counts as open."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((others (buffer-list)))
         (cl-letf* ((buffers (symbol-function 'buffer-list))
                    ((symbol-function 'buffer-list)
                     (lambda (&optional frame)
                       (cl-set-difference (funcall buffers frame) others))))
           ,@body)))))

(defun qwen-companion-roots-test--git (&rest arguments)
  "Run git with ARGUMENTS in the current directory."
  (with-temp-buffer
    (unless (eql 0 (apply #'call-process "git" nil t nil
                          "-c" "user.name=Test" "-c" "user.email=test@localhost"
                          "-c" "protocol.file.allow=always" arguments))
      (ert-fail (buffer-string)))))

(defun qwen-companion-roots-test--update ()
  "Look for the roots until all are known; a slow machine needs several slices."
  (qwen-companion-roots-update)
  (qwen-companion-test-wait-for (not qwen-companion-roots--timer)))

(defun qwen-companion-roots-test--finds (&rest roots)
  "Look for the roots, and check that these ROOTS are sent."
  (qwen-companion-roots-test--update)
  (should (equal roots (qwen-companion-roots-test--sent))))

(ert-deftest qwen-companion-roots-test-files-dired-and-terminals ()
  "Projects of files, Dired and terminals are roots; other buffers are not."
  (qwen-companion-roots-test--with-files '(("src/a.txt" "one\n") ("b/x" "") ("c/x" "") ("d/x" ""))
    (dolist (name '("b" "c" "d"))
      (make-directory (concat name "/.git")))
    (find-file-noselect "src/a.txt")
    (qwen-companion-roots-test--finds ".")
    (dired-noselect "b")
    (with-current-buffer (generate-new-buffer "terminal")
      (cd "c")
      ;; The package is not needed for that.
      (setq major-mode 'ghostel-mode))
    (with-current-buffer (generate-new-buffer "another") (cd "d"))
    (qwen-companion-roots-test--finds "." "b" "c")
    (let ((sent (length (qwen-companion-test-sent 'roots))))
      (qwen-companion-roots-test--update)
      (should (= sent (length (qwen-companion-test-sent 'roots)))))))

(ert-deftest qwen-companion-roots-test-turning-on-is-not-held-up ()
  "Turning on asks no project backend: the first question loads vc."
  (qwen-companion-roots-test--with-files '(("a.txt" ""))
    (find-file-noselect "a.txt")
    (let* ((asked 0)
           (project-find-functions (list (lambda (_) (ignore (cl-incf asked))))))
      (qwen-companion-context-enable)
      (should (= 0 asked))
      (qwen-companion-test-wait-for (qwen-companion-test-sent 'roots))
      (should (< 0 asked)))))

(ert-deftest qwen-companion-roots-test-nested-projects ()
  (qwen-companion-roots-test--with-files '(("a.txt" "") ("inner/b.txt" "") ("inner/deep/c.txt" ""))
    (make-directory "inner/.git")
    (find-file-noselect "a.txt")
    (find-file-noselect "inner/deep/c.txt")
    (qwen-companion-roots-test--finds "." "inner")))

(ert-deftest qwen-companion-roots-test-worktrees ()
  "A worktree is a project of its own, also below the one it belongs to."
  (qwen-companion-roots-test--with-files '(("a.txt" "one\n"))
    (delete-directory ".git" t)
    (qwen-companion-roots-test--git "init" "-q")
    (qwen-companion-roots-test--git "add" "a.txt")
    (qwen-companion-roots-test--git "commit" "-q" "-m" "Start")
    (qwen-companion-roots-test--git "worktree" "add" "-q" "trees/fix")
    (find-file-noselect "trees/fix/a.txt")
    (qwen-companion-roots-test--finds "trees/fix")
    (find-file-noselect "a.txt")
    (qwen-companion-roots-test--finds "." "trees/fix")))

(ert-deftest qwen-companion-roots-test-worktrees-beside-the-project ()
  "A project below its repository has its worktrees beside it, which are a root."
  (qwen-companion-roots-test--with-files '(("sub/a.txt" "one\n") ("b.txt" "two\n"))
    (let ((project-find-functions
           (list (lambda (directory)
                   (and (string-suffix-p "/sub/" directory) (cons 'transient directory))))))
      (find-file-noselect "sub/a.txt")
      (qwen-companion-roots-test--finds ".qwen/worktrees" "sub"))))

(ert-deftest qwen-companion-roots-test-outside-any-project ()
  (qwen-companion-roots-test--with-files '(("one/a.txt" "") ("two/b.txt" ""))
    (delete-directory ".git" t)
    (find-file-noselect "one/a.txt")
    (find-file-noselect "two/b.txt")
    (with-current-buffer (generate-new-buffer "terminal") (term-mode))
    (qwen-companion-roots-test--finds "." "one" "two")
    (let ((qwen-companion-roots-outside-projects nil))
      (qwen-companion-roots-test--finds))))

(ert-deftest qwen-companion-roots-test-a-directory-becomes-a-project ()
  "A root is looked up again after a while, or when the clock was set back."
  (dolist (seconds '(3600 -3600))
    (qwen-companion-roots-test--with-files '(("sub/a.txt" ""))
      (delete-directory ".git" t)
      (find-file-noselect "sub/a.txt")
      (qwen-companion-roots-test--finds "sub")
      (make-directory ".git")
      (let ((now (float-time)))
        (cl-letf (((symbol-function 'float-time) (lambda (&optional _) (+ now seconds))))
          (qwen-companion-roots-test--update)))
      (should (equal '(".") (qwen-companion-roots-test--sent))))))

(ert-deftest qwen-companion-roots-test-remote-files-have-none ()
  (qwen-companion-roots-test--with-files nil
    (with-current-buffer (generate-new-buffer "remote")
      (setq default-directory "/ssh:host:/home/user/" buffer-file-name "/ssh:host:/home/user/a.txt")
      (qwen-companion-roots-test--update)
      (setq buffer-file-name nil))
    (should-not (qwen-companion-roots-test--sent))))

(ert-deftest qwen-companion-roots-test-a-name-that-is-no-text ()
  "It cannot be told to a CLI; the user hears of it, once, and the others go on."
  (qwen-companion-roots-test--with-files '(("a.txt" ""))
    (let ((odd (decode-coding-string "odd\351" 'utf-8)))
      (qwen-companion-test-said "odd.* is left out"
        (find-file-noselect "a.txt")
        (with-current-buffer (generate-new-buffer "terminal")
          (setq default-directory (concat "/" odd "/"))
          (term-mode))
        (qwen-companion-roots-test--update))
      (should (equal '(".") (qwen-companion-roots-test--sent)))
      (qwen-companion-test-silent (qwen-companion-roots-test--update)))))

(ert-deftest qwen-companion-roots-test-no-root ()
  "Said once, and shown as long as it is so."
  (qwen-companion-roots-test--with-files nil
    (qwen-companion-test-with-state 'ready
      (should-not (qwen-companion-roots-unreachable))
      (qwen-companion-test-said "no CLI can connect: no file.*qwen-companion-run"
        (qwen-companion-roots-on-published '(:roots nil :reachable nil)))
      (should (equal " Qwen:no-root" (qwen-companion-test-lighter)))
      (should (string-match-p "no CLI can connect"
                              (get-text-property 0 'help-echo (qwen-companion-test-lighter))))
      ;; A CLI at another place can.
      (qwen-companion-places-set "/ssh:far:" '(:name "/ssh:far:" :state connecting))
      (should-not (string-match-p "no-root" (qwen-companion-test-lighter)))
      (qwen-companion-places-forget)
      (qwen-companion-test-silent (qwen-companion-roots-on-published '(:roots ("/a:b") :reachable nil)))
      (qwen-companion-roots-on-published '(:roots ("/a") :reachable t))
      (should (equal " Qwen" (qwen-companion-test-lighter)))
      (qwen-companion-test-silent (qwen-companion-roots-on-published '(:roots nil :reachable nil))))))

(ert-deftest qwen-companion-roots-test-the-mode-line-is-redrawn ()
  "When a CLI can connect, and when none can any more, but not at each answer."
  (qwen-companion-test-with-state 'ready
    (qwen-companion-test-with-roots nil
      (let (redrawn)
        (cl-letf (((symbol-function 'force-mode-line-update)
                   (lambda (&optional all)
                     (push (and all (substring-no-properties (qwen-companion-test-lighter))) redrawn))))
          (dolist (payload '((:roots ("/a") :reachable t)
                             (:roots ("/a" "/b") :reachable t)
                             (:roots nil :reachable nil)))
            (qwen-companion-roots-on-published payload)))
        (should (equal '(" Qwen:no-root" " Qwen") redrawn))))))

(ert-deftest qwen-companion-roots-test-a-connected-cli-keeps-its-root ()
  "Its root stays after the last file of the project is closed, until it ends."
  (qwen-companion-roots-test--with-files '(("one/a.txt" "") ("two/deep/b.txt" ""))
    (dolist (name '("one" "two"))
      (make-directory (concat name "/.git")))
    (find-file-noselect "one/a.txt")
    (find-file-noselect "two/deep/b.txt")
    (qwen-companion-roots-test--update)
    (qwen-companion-test-with-sessions
        (list '(:id "unknown") (list :id "known" :directory (expand-file-name "two/deep")))
      (mapc #'kill-buffer '("a.txt" "b.txt"))
      (qwen-companion-roots-test--finds "two")
      (qwen-companion-roots-test--finds "two"))
    (qwen-companion-roots-test--finds)))

(ert-deftest qwen-companion-roots-test-two-clis-keep-the-root-of-their-project ()
  "The list that was sent is not changed, whether it stays or not."
  (qwen-companion-roots-test--with-files '(("one/a.txt" "") ("two/b.txt" ""))
    (dolist (name '("one" "two"))
      (make-directory (concat name "/.git")))
    (find-file-noselect "one/a.txt")
    (find-file-noselect "two/b.txt")
    (qwen-companion-roots-test--update)
    (mapc #'kill-buffer '("a.txt" "b.txt"))
    (pcase-dolist (`(,clis ,roots) '((("one" "two" "one" "two") ("one" "two"))
                                     (("two" "two") ("two"))))
      (qwen-companion-test-with-sessions
          (cl-loop for name in clis
                   for id from 1
                   collect (list :id (number-to-string id) :directory (expand-file-name name)))
        (dotimes (_ 3)
          (qwen-companion-roots-test--update)
          (should (equal roots (qwen-companion-roots-test--sent))))))))

(ert-deftest qwen-companion-roots-test-a-directory-holds-its-files-while-written-to ()
  "It counts while another program makes files there, and so does a link to it."
  (qwen-companion-roots-test--with-files '(("one/deep/a.txt" "") ("ones/b.txt" ""))
    (let ((writer (start-process
                   "writer" nil "sh" "-c"
                   "while :; do : >one/new; rm -f one/new; done")))
      (unwind-protect
          (dotimes (_ 2000)
            (should (qwen-companion-untrusted-in-directory-p "one/deep/a.txt" "one")))
        (delete-process writer)))
    (make-symbolic-link "one" "link")
    (should (qwen-companion-untrusted-in-directory-p "link/deep/a.txt" "one"))
    (should (qwen-companion-untrusted-in-directory-p "one" "one/"))
    (pcase-dolist (`(,file ,directory)
                   '(("ones/b.txt" "one") ("one" "one/deep") ("gone/a.txt" "gone")))
      (should-not (qwen-companion-untrusted-in-directory-p file directory)))))

(provide 'qwen-companion-roots-test)
;;; qwen-companion-roots-test.el ends here
