;;; qwen-companion-structure-test.el --- Tests of how files use each other  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'ert)
(require 'seq)

(eval-and-compile
  (load (expand-file-name "scripts/structure.el"
                          (locate-dominating-file
                           (or load-file-name
                               (bound-and-true-p byte-compile-current-file)
                               buffer-file-name)
                           "Makefile"))
        nil t))

(ert-deftest qwen-companion-structure-test-nothing-is-found ()
  (should-not (structure-findings (file-name-directory (locate-library "qwen-companion")))))

(defun qwen-companion-structure-test--findings (files)
  "Return the findings in FILES, an alist of (NAME . FORMS)."
  (let ((directory (make-temp-file "structure-" t)))
    (unwind-protect
        (progn
          (pcase-dolist (`(,name . ,forms) files)
            (make-directory (file-name-directory (expand-file-name name directory)) t)
            (with-temp-file (expand-file-name (concat name ".el") directory)
              (mapc (lambda (form) (prin1 form (current-buffer))) forms)))
          (mapcar #'cdr (structure-findings directory)))
      (delete-directory directory t))))

(defun qwen-companion-structure-test--found (expected &rest files)
  "Check that the findings in FILES, each (NAME . FORMS), are EXPECTED."
  (should (equal expected (qwen-companion-structure-test--findings files))))

(ert-deftest qwen-companion-structure-test-circles-are-found ()
  "A circle is found through declarations and autoloads, too."
  (dolist (door '((declare-function qwen-companion-a-do "qwen-companion-a" ())
                  (require 'qwen-companion-a)
                  (defun qwen-companion-c () (require 'qwen-companion-a))
                  (autoload 'qwen-companion-a-do "qwen-companion-a")))
    (qwen-companion-structure-test--found
     '("circle: qwen-companion-a > qwen-companion-b > qwen-companion-a") '("qwen-companion-a" (require 'qwen-companion-b)) `("qwen-companion-b" ,door)))
  (qwen-companion-structure-test--found
   nil '("qwen-companion" (require 'qwen-companion-a) (require 'qwen-companion-b)) '("qwen-companion-a" (require 'qwen-companion-b)) '("qwen-companion-b" (require 'cl-lib))))

(ert-deftest qwen-companion-structure-test-private-names-of-others-are-found ()
  (dolist (use '((qwen-companion-a--do)
                 (setq x 'qwen-companion-a--do)
                 (setq x #'qwen-companion-a--do)
                 (setq x `(,(qwen-companion-a--do)))
                 (setq x [qwen-companion-a--do])
                 (setq x '(1 . qwen-companion-a--do))))
    (qwen-companion-structure-test--found '("private to qwen-companion-a: qwen-companion-a--do") `("qwen-companion-a-b" ,use)))
  (qwen-companion-structure-test--found
   '("private to qwen-companion-a: make-qwen-companion-a--thing") '("qwen-companion" (make-qwen-companion-a--thing)))
  (qwen-companion-structure-test--found
   nil
   '("qwen-companion" (defun qwen-companion--do () (qwen-companion-a-do)))
   '("qwen-companion-a" (defun qwen-companion-a-do () (make-qwen-companion-a--thing)))))

(ert-deftest qwen-companion-structure-test-declared-variables-of-others-are-found ()
  (dolist (definition '((defcustom qwen-companion-a nil "Doc.")
                        (defvar qwen-companion-a nil)
                        (defvar-local qwen-companion-a nil)
                        (define-minor-mode qwen-companion-a "Doc.")))
    (qwen-companion-structure-test--found
     '("variable of qwen-companion-a declared: qwen-companion-a") `("qwen-companion-a" ,definition) '("qwen-companion-b" (defvar qwen-companion-a))))
  (qwen-companion-structure-test--found
   nil '("qwen-companion-a" (defvar qwen-companion-a) (defvar qwen-companion-a nil)) '("qwen-companion-b" (defvar auth-sources))))

(ert-deftest qwen-companion-structure-test-programs-are-found ()
  "Programs are started in one file only."
  (pcase-dolist (`(,name ,use) '(("make-process" (make-process :name "x" :command '("git")))
                                 ("call-process" (apply #'call-process "git" nil))
                                 ("executable-find" (mapc #'executable-find '("git")))
                                 ("vc-refresh-state" (progn (vc-refresh-state)))
                                 ("compile" (compile "make"))))
    (qwen-companion-structure-test--found
     (list (concat "starts a program: " name)) `("qwen-companion-a" (require 'compile) ,use)))
  (qwen-companion-structure-test--found
   nil '("qwen-companion-programs" (make-process)) '("qwen-companion-a" (call-with-git #'vc-refresh-state))))

(ert-deftest qwen-companion-structure-test-single-forms-that-are-found ()
  "Forms without a star, and timers without a name."
  (pcase-dolist (`(,expected ,form)
                 '((("without a star: if-let") (defun qwen-companion-a () (if-let ((x 1)) x)))
                   (("without a star: when-let") (defun qwen-companion-a () (when-let ((x 1)) x)))
                   (("without a star: and-let") (defun qwen-companion-a () (and-let ((x 1)) x)))
                   (("a timer runs a lambda") (setq x (run-at-time 1 nil (lambda () x))))
                   (("a timer runs a function of others: look")
                    (cl-labels ((look ())) (run-at-time 1 nil #'look)))
                   (nil (setq x (run-at-time 1 nil #'qwen-companion-a)))))
    (qwen-companion-structure-test--found expected (list "qwen-companion-a" form))))

;;; Inside a folder

(ert-deftest qwen-companion-structure-test-circles-by-use-are-found ()
  "A function, a command in a keymap, an accessor or a face is a use; a mode is none."
  (pcase-dolist (`(,definition ,use)
                 '(((defun qwen-companion-a-do ()) (qwen-companion-a-do))
                   ((defun qwen-companion-a-do ()) (define-key map "a" 'qwen-companion-a-do))
                   ((cl-defstruct (qwen-companion-a-thing) "Doc." (place 1))
                    (qwen-companion-a-thing-place x))
                   ((defface qwen-companion-a-face nil "Doc.") (setq x '(face qwen-companion-a-face)))))
    (let ((two `("lisp/base/qwen-companion-b" (defun qwen-companion-b-do ()) ,use)))
      (qwen-companion-structure-test--found
       '("circle: qwen-companion-a > qwen-companion-b > qwen-companion-a")
       `("lisp/base/qwen-companion-a" ,definition (qwen-companion-b-do)) two)
      (qwen-companion-structure-test--found
       nil `("lisp/base/qwen-companion-a" ,definition) two)))
  (qwen-companion-structure-test--found
   nil
   '("lisp/base/qwen-companion-a" (define-derived-mode qwen-companion-a-mode nil "A") (qwen-companion-b-do))
   '("lisp/base/qwen-companion-b" (defun qwen-companion-b-do () (derived-mode-p 'qwen-companion-a-mode)))))

(ert-deftest qwen-companion-structure-test-names-of-other-files-are-found ()
  (qwen-companion-structure-test--found
   '("name of another file: qwen-companion-a")
   '("qwen-companion-a" (provide 'qwen-companion-a)) '("qwen-companion-b" (defun qwen-companion-a ())))
  (qwen-companion-structure-test--found
   nil '("qwen-companion-a" (defun qwen-companion-a ())) '("qwen-companion-b" (require 'qwen-companion-a))))

;;; Floors

(ert-deftest qwen-companion-structure-test-uses-of-a-higher-folder-are-found ()
  "A file must not use a higher folder, nor one beside its own."
  (dolist (use '((qwen-companion-b)
                 (add-hook 'some-hook #'qwen-companion-b)
                 (define-key map "b" 'qwen-companion-b)
                 (setq x '((key . qwen-companion-b)))))
    (pcase-dolist (`(,lower ,higher) '(("base" "backend") ("disk" "tools") ("review" "menu")))
      (qwen-companion-structure-test--found
       (list (format "%s/ is not below %s/: qwen-companion-b of qwen-companion-two" higher lower))
       (list (format "lisp/%s/qwen-companion-one" lower) use)
       (list (format "lisp/%s/qwen-companion-two" higher) '(defun qwen-companion-b ())))
      (qwen-companion-structure-test--found
       nil
       (list (format "lisp/%s/qwen-companion-one" lower) '(defun qwen-companion-b ()))
       (list (format "lisp/%s/qwen-companion-two" (if (equal higher "tools") "review" higher)) use)))))

(ert-deftest qwen-companion-structure-test-the-top-file-is-above-all-but-the-menu ()
  (pcase-dolist (`(,folder . ,expected)
                 '(("review" "./ is not below review/: qwen-companion-b of qwen-companion-two") ("menu")))
    (qwen-companion-structure-test--found
     expected
     (list (format "lisp/%s/qwen-companion-one" folder) '(define-key map "b" #'qwen-companion-b))
     '("qwen-companion-two" (defun qwen-companion-b ())))))

;;; What package-vc compiles

(ert-deftest qwen-companion-structure-test-package-vc-compiles-the-package-only ()
  "It compiles all of a checkout except the files in .elpaignore."
  (let* ((root (file-name-directory (locate-library "qwen-companion")))
         (ignored (with-temp-buffer
                    (insert-file-contents (expand-file-name ".elpaignore" root))
                    (mapcar (lambda (line) (wildcard-to-regexp (concat root line)))
                            (split-string (buffer-string) "\n" t))))
         ;; It enters no hidden directory.
         (files (directory-files-recursively
                 root "\\.el\\'" nil
                 (lambda (directory)
                   (not (string-prefix-p "." (file-name-nondirectory directory))))))
         (compiled (seq-remove (lambda (file)
                                 (seq-some (lambda (regexp) (string-match-p regexp file)) ignored))
                               files)))
    (should (member (expand-file-name "qwen-companion.el" root) compiled))
    (should-not (seq-remove (lambda (file)
                              (or (equal root (file-name-directory file))
                                  (string-prefix-p (expand-file-name "lisp/" root) file)))
                            compiled))
    (should-not (equal files compiled))))

(provide 'qwen-companion-structure-test)
;;; qwen-companion-structure-test.el ends here
